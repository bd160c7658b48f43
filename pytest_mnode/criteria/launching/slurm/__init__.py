"""How users of Slurm start their job scripts: `submission`, with the scripts of `script`."""
