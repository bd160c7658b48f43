"""Pure functions from the reports of ranks to one outcome: who failed first, who is absent."""
