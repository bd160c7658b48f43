"""The launch criterion: starts jobs as users do, and judges what their ranks get.

`starting` submits a job through a path (`direct`, `sbatch`) with a clean environment;
`judge_start`, `contract` and `variables` judge the reports of its ranks. `rendezvous` and `store`
run functions in ranks and judge the results; `meeting` is called by jobs. Only functions that
run in ranks import torch.
"""
