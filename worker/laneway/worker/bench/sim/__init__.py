"""A simulator in virtual time: the real `policy/` on an engine that only computes how long its steps would take.

`engine` imitates vLLM's scheduler, `workloads` makes jobs, `policies` and `laneway` decide, `world` runs the clock,
`metrics` judges. Everything follows from the seed.
"""
