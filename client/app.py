"""The ClientApp that Flower starts."""

from fedgc import client_app

app = client_app()
