"""Exports of a run: rounds and clients as tables, measures for TensorBoard and MLflow.

    rows         the columns and rows of a run, in parts
    files        CSV and Parquet: `rounds` and `clients` in one folder
    tensorboard  one event file
    mlflow       one run of a tracking server, or of a folder

All data comes from the store; a running run is exported up to its newest round.
"""
