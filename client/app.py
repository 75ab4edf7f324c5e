"""The ClientApp that Flower starts: wiring only, all else is in fedgc.flower."""

from fedgc.flower import client_app

app = client_app()
