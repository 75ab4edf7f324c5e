"""The documentation site: its pages, and the hook that fills the generated ones."""
