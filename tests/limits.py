"""The limits of all waits, and the test that lets each of them end a wait.

A limit is a constant named `*_S`; its test waits for a peer that never answers. To see that each
test depends on its limit, run

    python -m tests.limits [WORD …]

which runs each of them (of limits whose name has a WORD) in a copy of this tree where the limit is
1000 s longer at each use: the test must fail, or take far longer than before.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_mnode import processes

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_mnode"
LONGER_S = 1000
PATIENCE_S = 300.0
_TREE = "MNODE_TREE_OF_LIMITS"

LIMITS: Mapping[str, str] = {
    "agent/agent.py _FINALIZERS_S":
        "agent/test_agent.py::test_a_fork_server_whose_finalizers_hang_is_not_awaited_for_long",
    "agent/agent.py _STATUS_S":
        "agent/test_agent.py::test_the_status_of_the_fork_server_is_not_awaited_for_long",
    "agent/rank_stacks.py _CHILD_LIMIT_S":
        "agent/test_rank_stacks.py::test_stacks_that_are_never_written_are_not_awaited",
    "agent/rank_stacks.py _LIMIT_S":
        "agent/test_rank_stacks.py::test_stacks_that_are_never_written_are_not_awaited",
    "agent/agent.py LIMIT_S":
        "agent/test_ended_parts.py::test_a_process_that_outlives_sigkill_is_not_waited_for",
    "certificate/run_facts.py _GIT_LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[commit]",
    "certificate/statement.py _CHECK_LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[signature that is checked]",
    "certificate/statement.py _LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[signature that is made]",
    "controller/agents.py _STOP_LIMIT_S":
        "controller/test_agents.py::test_an_agent_that_outlives_its_input_is_killed",
    "controller/client.py LEASE_LIMIT_S":
        "controller/test_client.py::test_missing_answers_are_named",
    "controller/world_test.py UNCLEAN_TEARDOWN_LIMIT_S":
        "controller/test_world_test.py::test_a_failed_test_has_less_time_for_its_end",
    "controller/debugging.py _ANSWER_LIMIT_S":
        "controller/test_debugging.py::test_a_terminal_that_is_never_closed_is_left",
    "controller/world_test.py EXIT_HANDLERS_LIMIT_S":
        "controller/test_world_test.py::test_ranks_whose_handlers_of_atexit_never_end_are_named",
    "controller/hub.py _SUSPICION_S":
        "controller/test_hub.py::"
        "test_a_node_that_ended_is_lost_unless_its_launcher_soon_says_why",
    "controller/console.py _GUARD_END_S":
        "controller/test_console.py::test_a_guard_of_the_terminal_that_stays_is_ended",
    "controller/pool.py _STOP_LIMIT_S":
        "controller/test_pool.py::test_a_hub_that_never_ends_does_not_keep_a_pool_open",
    "controller/world_test.py DEATH_GRACE_S":
        "controller/test_world_test.py::test_a_death_leaves_other_ranks_less_time_than_a_failure",
    "controller/world_test.py GRACE_S":
        "controller/test_world_test.py::test_a_failure_starts_the_grace_not_the_limit",
    "controller/world_test.py MOST_GRACE_S":
        "controller/test_world_test.py::test_the_grace_of_a_running_rank_is_limited",
    "controller/world_test.py STACKS_LIMIT_S":
        "controller/test_world_test.py::"
        "test_a_rank_without_an_answer_is_in_the_phase_of_the_others",
    "criteria/launching/direct.py _END_S":
        "criteria/launching/test_left_behind.py::test_logins_that_are_closed_are_ended",
    "criteria/launching/meeting.py _ROLL_S":
        "criteria/launching/test_meeting.py::test_every_rank_names_the_absent_one",
    "criteria/launching/login.py _FOLLOW_S":
        "criteria/launching/test_left_behind.py::"
        "test_processes_beside_a_failed_one_are_not_awaited_for_long",
    "criteria/launching/login.py _KILL_S":
        "criteria/launching/test_left_behind.py::"
        "test_processes_beside_a_failed_one_are_not_awaited_for_long",
    "criteria/launching/slurm/submission.py _STEP_END_S":
        "criteria/launching/test_sbatch.py::test_a_step_that_does_not_end_is_named",
    "criteria/storage/asked.py _SEEN_S":
        "criteria/storage/test_asked.py::test_limits_grow_with_what_is_written",
    "criteria/storage/asked.py _START_S":
        "criteria/storage/test_asked.py::test_limits_grow_with_what_is_written",
    "measuring/limits.py SCAN_S":
        "test_silent_programs.py::test_a_program_that_never_answers[program that asks switches]",
    "machine/programs.py LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[program of a check]",
    "checks/node/dcgm.py _LEVEL_S":
        "checks/node/test_dcgm.py::test_one_that_hangs_ends_at_the_limit_of_its_level",
    "checks/node/dcgm.py _NODES_S":
        "checks/node/test_dcgm.py::test_one_over_all_nodes_ends_at_its_limit",
    "evidence/reading.py READ_LIMIT_S":
        "evidence/test_check.py::test_a_reading_that_hangs_is_late_and_holds_up_no_other",
    "criteria/preflight/datagrams.py _LAST_LIMIT_S":
        "criteria/preflight/test_node_probe.py::"
        "test_packets_to_a_node_that_answers_none_are_lost",
    "criteria/preflight/directories.py _SEEN_LIMIT_S":
        "criteria/preflight/test_node_probe.py::test_problems_of_a_directory",
    "criteria/preflight/node_probe.py _DIRECTORY_LIMIT_S":
        "criteria/preflight/test_node_probe.py::"
        "test_parts_of_a_node_that_never_answer_are_named",
    "criteria/preflight/node_probe.py _READ_LIMIT_S":
        "criteria/preflight/test_node_probe.py::"
        "test_a_part_of_the_machine_that_never_answers_is_unread",
    "criteria/preflight/node_probe.py _SEEN_LIMIT_S":
        "criteria/preflight/test_node_probe.py::"
        "test_files_that_are_never_looked_up_are_not_seen",
    "criteria/preflight/node_probe.py _SELF_DESTRUCT_S":
        "criteria/preflight/test_survey.py::test_a_survey_that_nobody_goes_on_with_ends_itself",
    "criteria/preflight/survey.py END_LIMIT_S":
        "criteria/preflight/test_survey.py::test_the_other_nodes_go_on_without_a_silent_node",
    "criteria/preflight/survey.py PROBE_SLACK_S":
        "criteria/preflight/test_survey.py::test_surveys_that_fall_silent_later_are_named",
    "criteria/preflight/survey.py _STATUS_S":
        "criteria/preflight/test_survey.py::test_surveys_that_fall_silent_later_are_named",
    "criteria/preflight/tcp.py _LOOPBACK_LIMIT_S":
        "criteria/preflight/test_node_probe.py::test_a_loopback_that_never_answers",
    "criteria/preflight/tcp.py _RESOLVE_LIMIT_S":
        "criteria/preflight/test_node_probe.py::test_a_name_that_is_never_resolved",
    "criteria/restart/run_files.py _SPARE_S":
        "test_silent_nodes.py::test_a_node_that_never_answers[step of a run]",
    "discover/nodes.py _LOOK_UP_LIMIT_S":
        "discover/test_session.py::"
        "test_a_lookup_that_hangs_leaves_only_its_node_without_an_address",
    "faults/tools.py LIMIT_S": "test_silent_nodes.py::test_a_node_that_never_answers[fault]",
    "jobs/job_processes.py _END_LIMIT_S":
        "jobs/test_job_processes.py::test_processes_that_outlive_sigkill_are_named",
    "jobs/job_processes.py _LIMIT_S":
        "jobs/test_job_processes.py::test_nodes_that_never_answer_are_not_awaited",
    "jobs/kubernetes/in_pod.py LINGER_S":
        "jobs/test_silent_pods.py::"
        "test_processes_beside_an_ended_command_keep_a_pod_only_for_a_moment",
    "jobs/kubernetes/job_pods.py _OVER_S":
        "jobs/test_silent_pods.py::test_a_pod_that_does_not_end_explains_no_failed_command",
    "jobs/kubernetes/job_pods.py _PRINTED_S":
        "jobs/test_silent_pods.py::test_the_output_of_a_pod_whose_stream_never_ends",
    "jobs/kubernetes/pod_start.py REFUSED_S":
        "jobs/test_silent_pods.py::test_pods_that_get_no_node",
    "jobs/kubernetes/pod_start.py UP_S": "jobs/test_silent_pods.py::test_pods_that_never_run",
    "jobs/kubernetes/pod_start.py _ENDED_S":
        "jobs/test_silent_pods.py::test_a_pod_that_outlives_its_object",
    "jobs/kubernetes/pod_start.py _ORDERED_S":
        "jobs/test_silent_pods.py::test_a_pod_that_takes_no_order",
    "jobs/observed.py _DUMPED_S":
        "jobs/test_observer.py::test_ranks_that_say_nothing_are_not_awaited",
    "jobs/running.py _FOLLOW_S":
        "jobs/test_running.py::test_local_commands_of_a_job_end_without_their_nodes",
    "jobs/launched.py NFS_DELAY_S":
        "jobs/test_submitted.py::test_a_status_file_that_never_arrives",
    "jobs/slurm/on_node.py _REQUEUE_S":
        "jobs/test_slurm_programs.py::test_a_requeue_that_slurm_never_makes_ends_the_job",
    "jobs/slurm/queued.py SILENCE_S":
        "jobs/test_slurm_programs.py::test_a_slurm_that_is_restarted_is_asked_again",
    "jobs/slurm/queued.py _END_S":
        "jobs/test_slurm_programs.py::test_a_job_that_stays_in_the_queue_is_not_awaited",
    "launchers/dial_in/bridge.py ENDS_S":
        "launchers/dial_in/test_ended.py::test_a_sites_command_that_stays_is_ended",
    "launchers/dial_in/bridge.py ENDED_S":
        "launchers/dial_in/test_ended.py::test_why_nodes_are_missing[true--0]",
    "launchers/dial_in/bridge.py TERM_S":
        "launchers/dial_in/test_ended.py::test_a_sites_command_that_stays_is_ended",
    "launchers/cleanup/client.py _CLOSE_S":
        "launchers/cleanup/test_client.py::test_a_daemon_that_does_not_end_is_killed",
    "launchers/cleanup/client.py _ENDS_S":
        "launchers/cleanup/test_client.py::test_a_daemon_that_is_stopped_has_no_last_words",
    "launchers/cleanup/client.py _KILL_S":
        "launchers/cleanup/test_client.py::test_a_daemon_that_outlives_sigkill_is_named",
    "launchers/cleanup/client.py _SEND_S":
        "launchers/cleanup/test_client.py::test_a_daemon_that_reads_no_orders_is_named",
    "launchers/cleanup/daemon.py _TOGETHER_S":
        "launchers/test_cleanup.py::test_the_cleanup_daemon_is_killed",
    "launchers/cleanup/queue_cleanup.py COMMAND_S":
        "jobs/test_slurm_programs.py::test_an_unreachable_scheduler_is_tried_again",
    "launchers/cleanup/queue_cleanup.py LIMIT_S":
        "jobs/test_slurm_programs.py::test_an_unreachable_scheduler_is_tried_again",
    "launchers/cleanup/queue_cleanup.py SOON_S":
        "jobs/test_slurm_programs.py::test_an_unreachable_scheduler_is_tried_again",
    "launchers/cleanup/leftovers.py ENDED_S":
        "jobs/test_slurm_programs.py::test_a_cleanup_that_does_not_end_is_killed",
    "launchers/cleanup/leftovers.py _END_S":
        "jobs/test_slurm_programs.py::test_a_cleanup_that_does_not_end_is_killed",
    "launchers/kubernetes/api.py REQUEST_S":
        "launchers/kubernetes/test_silence.py::test_a_request_without_an_answer",
    "launchers/kubernetes/api.py WATCH_S":
        "launchers/kubernetes/test_silence.py::test_a_watch_that_falls_silent_ends",
    "launchers/kubernetes/bridge.py DELETE_S":
        "launchers/kubernetes/test_broken_off.py::test_a_delete_is_given_up_at_its_limit",
    "launchers/kubernetes/bridge.py PULL_S":
        "launchers/kubernetes/test_start.py::test_the_longest_pull_has_a_limit",
    "launchers/kubernetes/launcher.py REPLACED_S":
        "launchers/kubernetes/test_silence.py::test_a_pod_that_nothing_replaces",
    "launchers/kubernetes/launcher.py _SLACK_S":
        "launchers/kubernetes/test_silence.py::test_a_bridge_that_reports_no_pod",
    "launchers/kubernetes/pod_streams.py _AWAY_S":
        "launchers/kubernetes/test_silence.py::"
        "test_a_server_without_a_watch_for_a_while_is_away",
    "launchers/kubernetes/pod_streams.py _ENDED_S":
        "launchers/kubernetes/test_silence.py::"
        "test_the_output_of_a_pod_that_runs_on_is_read_again",
    "launchers/kubernetes/pod_streams.py _END_S":
        "launchers/kubernetes/test_silence.py::test_a_watch_whose_thread_never_ends_is_closed",
    "launchers/power.py ANSWER_S":
        "test_silent_nodes.py::test_a_node_that_never_answers[recovery]",
    "launchers/rack/cgroups.py EMPTY_LIMIT_S":
        "launchers/test_cgroups.py::test_a_cgroup_that_stays_in_use_is_left",
    "launchers/rack/channel.py CLOSE_LIMIT_S":
        "launchers/test_rack_limits.py::test_a_listener_that_is_busy_does_not_keep_a_rack_open",
    "launchers/rack/channel.py REQUEST_LIMIT_S":
        "launchers/test_rack_limits.py::test_a_rack_that_never_answers",
    "launchers/rack/probe.py LIMIT_S":
        "launchers/test_probe.py::test_a_probe_that_hangs_is_ended",
    "launchers/rack/rack_init.py BOOT_LIMIT_S":
        "launchers/test_rack_limits.py::test_a_node_that_is_never_up",
    "launchers/rack/rack_init.py KILL_LIMIT_S":
        "launchers/test_rack_limits.py::test_a_node_whose_processes_outlive_sigkill",
    "launchers/rack/wiring.py FORWARDING_LIMIT_S":
        "launchers/test_rack_limits.py::test_a_switch_that_never_forwards",
    "launchers/remote/node_process.py ASK_S":
        "launchers/remote/test_node_process.py::"
        "test_a_bridge_that_takes_no_command_is_not_waited_for",
    "launchers/remote/remote_exec.py DRAIN_S":
        "launchers/remote/test_remote_exec.py::"
        "test_output_that_is_held_by_a_process_elsewhere_is_not_awaited",
    "launchers/remote/remote_exec.py GRACE_S":
        "launchers/remote/test_commands.py::test_the_command_ends_with_its_local_end",
    "launchers/remote/bridge_client.py _SLACK_S":
        "launchers/cleanup/test_client.py::test_a_bridge_of_a_silent_daemon_is_given_up",
    "launchers/remote/launcher.py _SLACK_S":
        "launchers/kubernetes/test_silence.py::test_a_bridge_that_is_never_up",
    "launchers/remote/stdio_bridge.py END_S":
        "launchers/remote/test_stdio_bridge.py::test_streams_end_with_the_run",
    "launchers/remote/stdio_bridge.py STATUS_S":
        "launchers/remote/test_stdio_streams.py::"
        "test_an_ssh_that_outlives_its_connection_is_not_awaited",
    "launchers/remote/wire.py SILENCE_S":
        "launchers/remote/test_remote_exec.py::"
        "test_time_in_which_one_end_was_stopped_is_no_silence_of_the_other",
    "launchers/slurm/allocation.py _RELEASED_S":
        "launchers/slurm/test_allocation.py::test_an_allocation_that_is_left_at_the_end_is_said",
    "launchers/slurm/allocation.py _WITHDRAWN_S":
        "launchers/slurm/test_allocation.py::"
        "test_an_allocation_that_does_not_end_is_cancelled_again",
    "launchers/slurm/command_lines.py QUEUE_LIMIT_S":
        "launchers/slurm/test_command_lines.py::test_limit_for_a_pending_request",
    "launchers/slurm/commands.py COMMAND_LIMIT_S":
        "launchers/slurm/test_commands.py::test_a_command_that_exceeds_its_limit",
    "logs/kernel_log.py LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[kernel log]",
    "machine/programs.py GRACE_S":
        "machine/test_programs.py::test_one_that_is_late_ends_with_its_children",
    "machine/model.py PART_LIMIT_S":
        "criteria/preflight/test_node_probe.py::"
        "test_a_part_of_the_machine_that_never_answers_is_unread",
    "machine/model.py _SCHEDULER_LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[scheduler]",
    "machine/netlink.py _LIMIT_S": "machine/test_netlink.py",
    "machine/own_threads.py _SETTLE_S":
        "machine/test_own_threads.py::test_a_thread_that_never_waits_is_in_no_library",
    "machine/threads.py GDB_LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[C stack]",
    "measuring/locating/locate.py BUDGET_S":
        "measuring/locating/test_locate.py::"
        "test_at_its_time_limit_the_search_stops_and_accuses_no_node",
    "measuring/tools/beside_nic.py _CONNECT_LIMIT_S":
        "measuring/tools/test_perftest.py::test_a_connection_without_an_answer_times_out",
    "measuring/tools/beside_nic.py _HELP_LIMIT_S":
        "test_silent_programs.py::test_a_program_that_never_answers[perftest]",
    "criteria/tuning/in_ranks.py MTU_S":
        "measuring/test_port_meanwhile.py::test_a_port_is_restored_whoever_is_killed[mtu0-nobody-0.2-]",
    "measuring/port_meanwhile.py TRIES_S":
        "measuring/test_port_meanwhile.py::test_a_port_that_is_gone_is_given_up",
    "measuring/tools/perftest_pairs.py _FAILED_END_S":
        "measuring/tools/test_silent_pairs.py::"
        "test_a_server_that_never_does_is_not_waited_for[fails]",
    "measuring/tools/perftest_pairs.py _LISTEN_LIMIT_S":
        "measuring/tools/test_perftest.py::"
        "test_a_started_server_that_refuses_connections_is_not_waited_for",
    "measuring/tools/perftest_pairs.py _SERVER_END_S":
        "measuring/tools/test_silent_pairs.py::"
        "test_a_server_that_never_does_is_not_waited_for[never ends]",
    "measuring/tools/perftest_pairs.py _SERVER_LIMIT_S":
        "measuring/tools/test_silent_pairs.py::"
        "test_a_server_that_never_does_is_not_waited_for[never listens]",
    "measuring/tools/perftest_pairs.py _SPARE_S":
        "measuring/tools/test_silent_pairs.py::"
        "test_a_server_that_never_does_is_not_waited_for[has a client that never ends]",
    "processes.py KILLED_S":
        "test_processes.py::test_a_program_that_outlives_sigkill_is_not_waited_for",
    "contrib/examples.py LATE_S":
        "worlds/test_examples.py::"
        "test_an_example_is_not_shrunk_if_other_ranks_wait_in_a_collective",
    "rank/leaks.py _SETTLE_S":
        "rank/test_leaks.py::test_a_child_that_does_not_end_is_left_after_a_moment",
    "rank/trial.py _FINALIZERS_S":
        "rank/test_trial.py::test_finalizers_of_an_import_have_a_limit",
}  # fmt: skip
"""By module and name: the test, from `tests` on."""

NO_LIMITS: Mapping[str, tuple[str, ...]] = {
    "between two looks, or two tries": (
        "evidence/file.py _SYNC_S",
        "agent/agent.py _ENDING_TURN_S",
        "agent/fork_server.py _REAP_S",
        "agent/live_output.py TURN_S",
        "controller/world_test.py MOST_POLL_S",
        "controller/world_test.py POLL_S",
        "controller/debugging.py _TURN_S",
        "controller/hub.py CHECK_S",
        "controller/console.py _TURN_S",
        "controller/world_test.py _TURN_S",
        "criteria/launching/meeting.py _POLL_S",
        "criteria/preflight/node_probe.py _HEARD_EVERY_S",
        "criteria/storage/meeting.py _POLL_OF_A_RANK_S",
        "criteria/storage/meeting.py _POLL_S",
        "criteria/launching/meeting.py _RETRY_S",
        "measuring/under_load.py _LEAST_EVERY_S",
        "gang/watch.py _LEAST_PAUSE_S",
        "gang/watch.py _OTHERS_EVERY_S",
        "jobs/kubernetes/job_pods.py _POLL_NODES_S",
        "jobs/launched.py POLL_S",
        "jobs/observed.py _POLL_S",
        "jobs/observer.py _POLL_S",
        "jobs/running.py _ASK_AGAIN_S",
        "jobs/slurm/nodes.py _POLL_NODES_S",
        "jobs/slurm/queued.py POLL_JOB_S",
        "launchers/cleanup/daemon.py IDLE_S",
        "launchers/cleanup/queue_cleanup.py _LONGEST_PAUSE_S",
        "launchers/cleanup/queue_cleanup.py _PAUSE_S",
        "launchers/cleanup/bridge_task.py POLL_S",
        "launchers/dial_in/bridge.py _POLL_S",
        "launchers/remote/stdio_bridge.py AGAIN_S",
        "launchers/remote/bridge_server.py ACCEPT_AGAIN_S",
        "launchers/remote/stdio_bridge.py _POLL_S",
        "launchers/kubernetes/bridge.py AGAIN_S",
        "launchers/kubernetes/bridge.py EVENTS_S",
        "launchers/kubernetes/bridge.py POLL_NODES_S",
        "launchers/kubernetes/pod_streams.py _AGAIN_S",
        "launchers/kubernetes/pod_streams.py _LONGEST_S",
        "launchers/remote/launcher.py _TRY_AGAIN_S",
        "launchers/remote/run_all.py _FIRST_POLL_S",
        "launchers/remote/run_all.py _MOST_POLL_S",
        "launchers/slurm/allocation.py _FIRST_POLL_S",
        "launchers/slurm/allocation.py _POLL_S",
        "launchers/slurm/allocation_state.py POLL_NODES_S",
        "measuring/devices.py _SAMPLE_EVERY_S",
        "measuring/tools/beside_nic.py _LOOK_EVERY_S",
        "measuring/tools/perftest_pairs.py _POLL_S",
        "measuring/tools/perftest_pairs.py _RETRY_S",
        "rank/recorder.py _PERIOD_S",
        "rank/shared_test.py _POLL_S",
        "reference_job/checkpoint/loading.py _LOOK_AGAIN_S",
        "reference_job/checkpoint/saving.py _LOOK_AGAIN_S",
        "reference_job/trainer.py _HOLD_INTERVAL_S",
    ),
    "between two heartbeats": (
        "gang/heartbeat_rank.py EVERY_S",
        "launchers/remote/wire.py BEAT_S",
        "protocol/messages.py BEAT_S",
    ),
    "how long something is done, whoever answers": (
        "criteria/port_counters/judging.py _LOADED_S",
        "criteria/port_counters/reading.py _BETWEEN_S",
        "criteria/preflight/datagrams.py _OVERTAKEN_S",
        "criteria/preflight/survey.py COUNTED_S",
        "criteria/scaling/program.py _SWEEP_S",
        "criteria/soak/rounds.py LOAD_S",
        "criteria/soak/rounds.py PAIRS_S",
        "criteria/soak/rounds.py SHORT_S",
        "criteria/soak/rounds.py _CALL_S",
        "criteria/soak/running.py FIRST_S",
        "criteria/tuning/catalogue.py _EMULATED_S",
        "criteria/tuning/catalogue.py _LARGE_S",
        "criteria/tuning/in_ranks.py REPEAT_S",
        "faults/network.py FLAP_EVERY_S",
        "faults/network.py FLAP_S",
        "gang/experiments.py _HEARD_S",
        "gang/experiments.py _SMALL_RUNS_S",
        "jobs/observer.py _TRACED_S",
        "launchers/cleanup/daemon.py STILL_WRITING_S",
        "launchers/cleanup/queue_cleanup.py _LATE_S",
        "launchers/rack/wiring.py QUEUE_S",
        "measuring/at_once.py _LEAD_S",
        "measuring/at_once.py _MESSAGE_S",
        "measuring/devices.py REPEAT_S",
        "measuring/failover.py STEADY_S",
        "measuring/failover.py _CALL_S",
        "measuring/lanes.py _MESSAGE_S",
        "measuring/lanes.py _PATH_S",
        "measuring/limits.py REPEAT_S",
        "measuring/locating/pairs.py _CHUNK_S",
        "measuring/locating/pairs.py _ENOUGH_S",
    ),
    "a bound or a part of a judgement": (
        "checks/node/clocks.py _USELESS_SKEW_S",
        "criteria/goodput.py _CLOCK_S",
        "checks/node/names.py _STALL_S",
        "certificate/run_facts.py DEFAULT_VALIDITY_S",
        "controller/console.py FIRST_S",
        "criteria/launching/rendezvous.py _LEAST_S",
        "criteria/storage/meeting.py _STALE_S",
        "criteria/launching/rendezvous.py _LONG_S",
        "criteria/preflight/datagrams.py _GOOD_ERROR_S",
        "criteria/preflight/directories.py _STALE_S",
        "criteria/restart/judging.py _CLOCK_TOLERANCE_S",
        "gang/heartbeats.py GAP_S",
        "gang/kubernetes/engine.py _REPORTED_S",
        "gang/window.py BLIND_S",
        "logs/aftermath.py AFTER_S",
        "logs/aftermath.py BEFORE_S",
        "measuring/busbw.py _VALID_S",
        "measuring/checked_calls.py _SPOT_S",
        "measuring/latency.py _FLOOR_S",
        "measuring/latency.py _SHARED_FLOOR_S",
        "rank/recorder.py _SHORT_S",
        "spec/gang.py _FEWEST_RUN_S",
    ),
    "a part of a model": (
        "certifying/plan.py _A_KILL_S",
        "spec/alpha_beta.py _START_S",
        "spec/alpha_beta.py _TCPXO_MORE_S",
        "spec/alpha_beta.py _AMD_INSIDE_S",
        "spec/alpha_beta.py _EFA_MORE_S",
        "spec/alpha_beta.py _NVLS_INSIDE_S",
        "spec/alpha_beta.py _SOCKETS_S",
        "virtual/cluster.py STEP_S",
        "virtual/cluster.py TCP_STEP_S",
        "virtual/fabric.py _FAILOVER_CALL_S",
        "virtual/fabric.py _ROUND_S",
        "virtual/machines.py CLOCKS_DIFFER_S",
        "virtual/machines.py CLOCK_ERROR_S",
        "virtual/ports.py _LASTS_S",
        "virtual/scaling.py _INPUT_S",
        "virtual/scaling.py _OPTIMISER_S",
        "virtual/scaling.py _REST_S",
        "virtual/storage.py _SEEN_S",
    ),
    "no time: a rate": (
        "controller/world_test.py STACKS_RANKS_PER_S",
        "launchers/rack/plan.py MAX_RATE_MBIT_S",
        "logs/perftest.py _GBITS_S",
        "spec/alpha_beta.py _PCIE_BYTES_S",
        "measuring/tools/own_results.py _CLEAR_GBYTES_S",
        "virtual/cluster.py TCP_GBYTES_S",
    ),
    "an option of another program, or a field of its object: that program waits": (
        "gang/kubernetes/engine.py _GRACE_S",
        "launchers/dial_in/launcher.py END_S",
        "launchers/kubernetes/launcher.py DELETE_S",
        "launchers/kubernetes/launcher.py SILENCE_S",
        "launchers/kubernetes/manifest.py KEPT_S",
        "launchers/kubernetes/manifest.py MOST_RUN_S",
        "launchers/slurm/command_lines.py IMMEDIATE_S",
    ),
    "given to a wait of worlds, jobs, commands or a store, which has a test of its own": (
        "criteria/launching/meeting.py _FOUND_S",
        "criteria/launching/meeting.py _STORE_LIMIT_S",
        "checks/node/dcgm.py _MARGIN_S",
        "criteria/preflight/survey.py CONTROL_LIMIT_S",
        "criteria/restart/kill_run.py START_LIMIT_S",
        "criteria/restart/kill_run.py _END_LIMIT_S",
        "criteria/restart/kill_run.py _NOTICED_S",
        "criteria/restart/run_files.py _LAST_S",
        "criteria/restart/warm_runs.py _LIMIT_S",
        "criteria/scaling/job.py _START_S",
        "criteria/tuning/running.py LIMIT_S",
        "gang/experiments.py _SPARE_S",
        "jobs/kubernetes/pod_start.py PLACED_S",
        "measuring/limits.py CONNECT_OF_A_RANK_S",
        "measuring/limits.py CONNECT_PAIRS_S",
        "measuring/limits.py CONNECT_S",
        "measuring/limits.py LEAST_SEARCH_S",
        "measuring/limits.py ROUND_S",
        "measuring/limits.py START_UP_OF_ACCELERATORS_S",
        "measuring/limits.py START_UP_OF_A_RANK_S",
        "measuring/limits.py START_UP_S",
        "measuring/limits.py TRIAL_S",
        "reference_job/checkpoint/shared.py VISIBLE_S",
        "reference_job/trainer.py HOLD_S",
    ),
    "no limit: the test's own ends the wait earlier": ("rank/votes.py FOREVER_S",),
}
"""Constants that limit no wait, by the reason."""


GIVEN: Mapping[str, str] = {
    "jobs/job.py Job.back_within_s":
        "jobs/test_running.py::test_a_job_waits_for_a_lost_node_as_long_as_promised",
    "spec/devices.py MemoryTestPromise.within_s":
        "measuring/test_memory_test.py::test_patterns_after_the_limit_are_left_out",
    "limits.py Limits.connect_s":
        "launchers/test_ssh.py::test_a_node_that_cannot_be_connected_again_in_time",
    "limits.py Limits.report_s":
        "test_silent_nodes.py::test_a_node_that_never_answers[discovery]",
    "limits.py Limits.silence_s":
        "launchers/remote/test_commands.py::test_silence_ends_both_sides",
    "limits.py Limits.start_s":
        "controller/test_agents.py::test_a_silent_agent_is_found",
    "limits.py Limits.agent_silence_s":
        "controller/test_agents.py::test_a_silent_agent_is_found",
    "limits.py Limits.first_word_s":
        "controller/test_agents.py::test_a_silent_agent_is_found",
    "limits.py Limits.imported_s":
        "controller/test_hub.py::test_a_node_whose_ranks_never_come_is_named",
    "limits.py Limits.ranks_s":
        "controller/test_waits.py::test_a_world_that_never_becomes_ready_is_given_up",
    "limits.py Limits.reported_s":
        "criteria/preflight/test_survey.py::test_the_other_nodes_go_on_without_a_silent_node",
    "limits.py Limits.world_s":
        "controller/test_client.py::test_missing_answers_are_named",
    "marks.py WorldRequest.still_s":
        "controller/test_world_test.py::test_ranks_without_progress_are_hung_before_the_limit",
    "marks.py WorldRequest.timeout_s":
        "worlds/test_hanging.py::test_every_report_came_at_its_limit",
    "options.py Settings.budget_s": "certifying/test_free_nodes.py",
    "options.py Settings.connect_limit_s":
        "launchers/test_ssh.py::test_a_node_that_cannot_be_connected_again_in_time",
    "options.py Settings.k8s_wait_s":
        "launchers/kubernetes/test_start.py::test_other_waits_end_in_time_and_name_the_option",
    "options.py Settings.locate_budget_s":
        "measuring/locating/test_locate.py::"
        "test_at_its_time_limit_the_search_stops_and_accuses_no_node",
    "options.py Settings.report_limit_s":
        "test_silent_nodes.py::test_a_node_that_never_answers[discovery]",
    "options.py Settings.silence_limit_s":
        "launchers/remote/test_commands.py::test_silence_ends_both_sides",
    "options.py Settings.start_limit_s":
        "launchers/remote/test_stdio_streams.py::test_a_slow_start_within_the_limit_is_awaited",
    "options.py Settings.timeout_s":
        "worlds/test_hanging.py::test_every_report_came_at_its_limit",
    "protocol/messages.py AgentOrder.silence_s":
        "agent/test_agent.py::test_silence_of_the_hub_ends_an_agent_on_another_machine",
    "protocol/launcher_requests.py LauncherRequest.limit_s":
        "controller/test_client.py::test_missing_answers_are_named",
    "protocol/launcher_requests.py SwitchPower.limit_s":
        "controller/test_client.py::test_missing_answers_are_named",
    "spec/fabric.py NcclTestsPromise.limit_s": "measuring/tools/test_nccl_tests.py",
    "spec/gang.py GangCriterion.lost_within_s":
        "gang/test_experiments.py::test_a_gang_not_taken_down_in_time",
    "spec/inventory.py Power.command_within_s":
        "launchers/test_power_commands.py::"
        "test_a_command_that_exceeds_its_limit_is_ended_with_its_children",
    "spec/inventory.py Power.within_s":
        "launchers/kubernetes/test_silence.py::"
        "test_a_node_that_is_not_back_after_it_was_switched_on",
    "checks/node/dcgm.py Dcgm.within_s":
        "checks/node/test_dcgm.py::test_one_that_hangs_ends_at_the_limit_of_its_level",
    "checks/node/dcgm.py DcgmNodes.within_s":
        "checks/node/test_dcgm.py::test_one_over_all_nodes_ends_at_its_limit",
    "checks/node/names.py Names.within_s":
        "criteria/preflight/test_node_probe.py::test_a_lookup_that_hangs_delays_no_other_answer",
    "checks/node/reachable.py Reachable.within_s":
        "criteria/preflight/test_node_probe.py::test_a_lookup_that_hangs_delays_no_other_answer",
    "spec/launch.py RendezvousPromise.within_s":
        "criteria/launching/test_meeting.py::test_every_rank_names_the_absent_one",
    "spec/launch.py StartPromise.within_s":
        "criteria/launching/test_sbatch.py::test_a_step_ends_at_its_limit",
    "spec/launch.py StorePromise.within_s":
        "criteria/launching/test_rendezvous.py::test_a_start_that_is_never_given_has_a_limit",
}  # fmt: skip
"""Limits that a user gives, or a caller, by module, class and field: the test."""

JUDGED: Mapping[str, tuple[str, ...]] = {
    "what came later fails the judgement": (
        "spec/gang.py GangCriterion.next_within_s",
        "spec/gang.py GangCriterion.waits_s",
        "spec/restart.py RestartCriterion.checkpoint_within_s",
        "spec/restart.py RestartCriterion.within_s",
        "spec/storage.py PathPromise.renamed_within_s",
        "spec/traffic.py FailoverPromise.within_s",
        "spec/workload.py ResumePromise.within_s",
    ),
    "given to a wait of worlds, jobs or checkpoints, which has a test of its own": (
        "checks/node/payloads.py Payload.within_s",
        "spec/restart.py RestartCriterion.back_within_s",
        "spec/restart.py RestartCriterion.visible_within_s",
        "spec/scaling.py ScalingCriterion.within_s",
        "spec/workload.py WorkloadCriterion.within_s",
    ),
}
"""Fields of such names that have no such test, by the reason."""


def constants(path: Path) -> Iterator[str]:
    """Names of the constants of a module that end with _S."""
    for node in ast.parse(path.read_text()).body:
        yield from (name for name in _assigned(node) if name.endswith("_S"))


def all_constants() -> list[str]:
    """Module and name of each constant, such as "rank/leaks.py _SETTLE_S"."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [f"{path.relative_to(PACKAGE)} {name}" for path in paths for name in constants(path)]


_GIVEN = (
    "options.py",
    "marks.py",
    "jobs/job.py",
    "limits.py",
    "spec/*.py",
    "checks/node/*.py",
)
_GIVEN_BY_CALLERS = ("protocol/*.py",)
_ENDINGS = ("limit_s", "timeout_s", "still_s", "silence_s", "budget_s", "wait_s", "waits_s")


def all_given() -> list[str]:
    """Module, class and field of each limit that is an option, a promise or part of a request."""
    found = []
    for path in sorted(p for one in _GIVEN + _GIVEN_BY_CALLERS for p in PACKAGE.glob(one)):
        for kind in ast.walk(ast.parse(path.read_text())):
            if isinstance(kind, ast.ClassDef):
                names = [name for node in kind.body for name in _assigned(node)]
                ours = [name for name in names if name.endswith((*_ENDINGS, "within_s"))]
                if path == PACKAGE / "limits.py":
                    of = [node.name for node in kind.body if isinstance(node, ast.FunctionDef)]
                    ours = [name for name in names + of if name.endswith("_s")]
                found += [f"{path.relative_to(PACKAGE)} {kind.name}.{name}" for name in ours]
    return found


def _assigned(node: ast.stmt) -> Iterator[str]:
    """Names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = (name for target in targets for name in ast.walk(target))
    yield from (name.id for name in names if isinstance(name, ast.Name))


class _Uses(ast.NodeVisitor):
    """Places where a constant is used in code; messages do not count. If it is the default of a
    parameter, the places are those of that parameter in its function, because tests give it."""

    def __init__(self, name: str) -> None:
        self.names = [name]
        self.found: set[tuple[int, int, int]] = set()

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments, before = node.args, self.names
        given = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(reversed(given), reversed(arguments.defaults), strict=False)]
        pairs += [p for p in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if p[1]]  # type: ignore[misc]
        own = [a.arg for a, d in pairs if isinstance(d, ast.Name) and d.id == before[0]]
        self.names = before + own
        for statement in node.body:
            self.visit(statement)
        self.names = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.names and isinstance(node.ctx, ast.Load):
            self._add(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == self.names[0] and isinstance(node.ctx, ast.Load):
            self._add(node)
        self.generic_visit(node)

    def _add(self, node: ast.expr) -> None:
        assert node.end_col_offset is not None
        self.found.add((node.lineno, node.col_offset, node.end_col_offset))


def lengthened(text: str, name: str) -> str:
    """The module with LONGER_S added wherever it uses the constant."""
    uses, lines = _Uses(name), text.encode().splitlines(keepends=True)
    uses.visit(ast.parse(text))
    for line, begin, end in sorted(uses.found, reverse=True):
        old = lines[line - 1]
        use = b"(%s + %d)" % (old[begin:end], LONGER_S)
        lines[line - 1] = old[:begin] + use + old[end:]
    return b"".join(lines).decode()


def depends(limit: str, tree: Path) -> str:
    """How the test of a limit ends in `tree`, a copy of this one, with the limit longer there."""
    module, name = limit.split()
    began = time.monotonic()
    if run(limit, tree, PATIENCE_S) != 0:
        return "FAILS ANYWAY"
    took_s = time.monotonic() - began
    dotted = "pytest_mnode." + module.removesuffix(".py").replace("/", ".")
    attribute = f"{dotted.rpartition('.')[2]}.{name}"
    changed = {}
    for path in (tree / "pytest_mnode").rglob("*.py"):
        text = path.read_text()
        if path == tree / "pytest_mnode" / module or (
            name in text and (dotted in text or attribute in text)
        ):
            changed[path] = text
            path.write_text(lengthened(text, name))
    try:
        how = run(limit, tree, 2 * took_s + 10.0)
    finally:
        for path, text in changed.items():
            path.write_text(text)
    return {None: "still runs", 0: "PASSES", 1: "fails"}.get(how, f"STATUS {how}")


def run(limit: str, tree: Path, patience_s: float) -> int | None:
    """Exit status of pytest for the test of a limit; None if it still runs at the end."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", _TREE: str(tree)}
    test = subprocess.Popen(
        [*argv, f"tests/{LIMITS[limit]}"],
        cwd=tree,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return test.wait(patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(test.pid, signal.SIGKILL)
        test.wait(patience_s)
        return None
    finally:  # of a test that was killed, anything may be left
        processes.end_started_with(_TREE, str(tree))


def main(words: list[str]) -> int:
    """1 if a test passes although its limit is never reached."""
    wrong = False
    with tempfile.TemporaryDirectory(prefix="mnode-limits-") as directory:
        tree = Path(directory)
        for name in ("pytest_mnode", "tests", "acceptance", "fixtures", "docs"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, tree / name)
        for limit in LIMITS:
            if not words or any(word in limit for word in words):
                how = depends(limit, tree)
                wrong |= not how.islower()
                print(f"{how:<12}{limit}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
