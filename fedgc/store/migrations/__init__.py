"""The steps that brought the schema to where it is; `fedgc/store/migrate.py` walks them."""
