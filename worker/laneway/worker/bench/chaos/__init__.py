"""`laneway bench chaos`: real workers and a real server are killed, frozen and cut off, and every job is accounted for.

`plan` says what is submitted and what breaks when, by seed; `run` carries it out; `audit` judges what was left behind.
"""
