"""The possible promises, one model per criterion; a new criterion is added here."""

from __future__ import annotations

from pytest_mnode.spec.checks import DataCriterion, GroupsCriterion
from pytest_mnode.spec.devices import DevicesCriterion, NumaCriterion
from pytest_mnode.spec.fabric import FabricCriterion
from pytest_mnode.spec.fields import Page
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.spec.inventory import Criterion
from pytest_mnode.spec.launch import LaunchCriterion
from pytest_mnode.spec.preflight import PreflightCriterion
from pytest_mnode.spec.restart import RestartCriterion
from pytest_mnode.spec.scaling import ScalingCriterion
from pytest_mnode.spec.soak import SoakCriterion
from pytest_mnode.spec.storage import StorageCriterion
from pytest_mnode.spec.traffic import TrafficCriterion
from pytest_mnode.spec.tuning import TuningCriterion
from pytest_mnode.spec.workload import WorkloadCriterion


class MeshCriterion(Criterion):
    """Every rank meets every other and sums right: exact, so there is no bound to set."""


class Criteria(Page):
    """What is promised: one key per criterion, holding its bounds."""

    preflight: PreflightCriterion | None = None
    """Is every node fit for what is to run on it?"""
    mesh: MeshCriterion | None = None
    """Can all ranks exchange data, with correct sums?"""
    numa: NumaCriterion | None = None
    """Do ranks run, allocate and send beside their accelerators?"""
    devices: DevicesCriterion | None = None
    """Is every rank as fast by itself as the others?"""
    fabric: FabricCriterion | None = None
    """Do collectives reach the line rate?"""
    groups: GroupsCriterion | None = None
    """Do parallel dimensions have the right ranks, and sum right?"""
    data: DataCriterion | None = None
    """Does every sample reach one rank, once?"""
    storage: StorageCriterion | None = None
    """Is storage fast enough, and the same to all nodes?"""
    launch: LaunchCriterion | None = None
    """Does a job start right, wherever it is placed?"""
    scaling: ScalingCriterion | None = None
    """Is the loss of n nodes against one small, and explained?"""
    restart: RestartCriterion | None = None
    """Does a killed job come back and lose nothing?"""
    workload: WorkloadCriterion | None = None
    """Does the buyer's own job run as fast as promised, and learn?"""
    traffic: TrafficCriterion | None = None
    """Does the fabric carry experts, several groups at once, and two jobs?"""
    tuning: TuningCriterion | None = None
    """What do settings of libraries, job and nodes gain?"""
    gang: GangCriterion | None = None
    """Does a gang start whole, or wait?"""
    soak: SoakCriterion | None = None
    """Do nodes stay right, connected and as fast under load for hours?"""
