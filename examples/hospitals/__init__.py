"""Eight hospitals, of which the slowest holds half of the data: fedgc beside other ways to train."""
