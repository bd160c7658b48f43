"""The launch criterion: starts jobs as users do, and judges what their ranks get.

`starting` submits a job through a path (`direct`, `sbatch`) with a clean environment, and judges
the reports of its ranks by their `contract`. `rendezvous` runs functions in ranks and judges the
results; `meeting` is called by jobs. Only functions that run in ranks import torch.
"""
