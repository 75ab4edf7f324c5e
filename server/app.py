"""The ServerApp that Flower starts."""

from fedgc import server_app

app = server_app()
