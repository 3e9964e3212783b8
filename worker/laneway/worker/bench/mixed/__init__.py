"""`laneway bench mixed`: scheduling policies side by side on one real engine, under the same mixed load.

`plan` draws the load, `policies` decide when a job enters the engine, `drive` plays a load through a policy, `measure`
judges what the jobs saw, `compare` tunes the rivals and puts all in turns.
"""
