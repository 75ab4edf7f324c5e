"""The migrations of the schema; `fedgc/store/migrate.py` applies them."""
