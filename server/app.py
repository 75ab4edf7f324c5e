"""The ServerApp that Flower starts: wiring only, all else is in fedgc.flower."""

from fedgc.flower import server_app

app = server_app()
