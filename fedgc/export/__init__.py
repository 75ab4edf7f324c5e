"""A run for other programs: its rounds and clients as tables, its measures for TensorBoard and MLflow.

    rows         the columns of a round and of a client in a round, and the lines of a run, a part at a time
    files        CSV and Parquet: `rounds` and `clients`, side by side in a folder
    tensorboard  one event file
    mlflow       one run of a tracking server, or of a folder

All of it is read from the store; a run that goes on is exported as far as it is.
"""
