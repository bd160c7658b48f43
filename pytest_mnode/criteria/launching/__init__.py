"""The launch criterion: jobs started as users start them, and what their ranks get.

`starting` submits a job through a path (`direct`, `sbatch`) with a clean environment;
`judge_start`, `contract` and `variables` judge the reports of its ranks. `rendezvous` and `store`
run functions in ranks and judge the results; `meeting` is for jobs themselves. Only functions that
run in ranks import torch.
"""
