"""The worker's subcommands of `laneway`, one a file."""
