"""JobQueue, over Redis and in memory."""
