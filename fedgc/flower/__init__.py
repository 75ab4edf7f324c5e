"""fedgc on Flower: the strategy, the ServerApp and the ClientApp, and the loops that drive a run.

Their public names (`FedGC`, `server_app`, `client_app`) are imported from `fedgc`.
"""
