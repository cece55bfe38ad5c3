/*-------------------------------------------------------------------------
 * allowed_settings.h
 *		The settings that a role may weigh without being a superuser.
 *
 * An arm reaches the sessions of others, so a setting is not harmless because
 * everybody may SET it: exit_on_error ends a session, row_security and
 * backslash_quote change what a statement means, a timeout fails it,
 * synchronous_commit loses it in a crash.  Listed is what observes, and what
 * lets the planner and the executor reach the same result in another way.
 *
 * Left out on purpose: what clients are sent (client_min_messages,
 * auto_explain.log_level), what puts bind values or parse trees into the log
 * (log_parameter_max_length..., debug_print_...), what thins the log of errors
 * (log_min_messages, log_error_verbosity), what autovacuum depends on
 * (track_counts), what fails or runs without end if set high (geqo_pool_size,
 * geqo_generations), what all times are taken from (timing_clock_source), and the
 * texts and values of sql_trace.
 *
 * To be on the list is not enough: the role must have the right to SET it as
 * well.  Most that observe are a superuser's until GRANT SET ON PARAMETER.
 *
 * A name holds from the first major version given to the last, 0: no bound.
 * A new major version needs a look at all its settings before
 * ARM_SETTINGS_LAST names it; until then only superusers weigh there.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_ALLOWED_SETTINGS_H
#define PGTARE_ALLOWED_SETTINGS_H

#define ARM_SETTINGS_FIRST 15
#define ARM_SETTINGS_LAST 19

typedef struct ArmSetting
{
	const char *name;
	int			first;
	int			last;
} ArmSetting;

static const ArmSetting arm_settings[] = {
	/* observation */
	{"compute_query_id", 0, 0},
	{"log_duration", 0, 0},
	{"log_executor_stats", 0, 0},
	{"log_lock_failures", 18, 0},
	{"log_lock_waits", 0, 0},
	{"log_min_duration_sample", 0, 0},
	{"log_min_duration_statement", 0, 0},
	{"log_parser_stats", 0, 0},
	{"log_planner_stats", 0, 0},
	{"log_statement", 0, 0},
	{"log_statement_sample_rate", 0, 0},
	{"log_statement_stats", 0, 0},
	{"log_temp_files", 0, 0},
	{"log_transaction_sample_rate", 0, 0},
	{"track_activities", 0, 0},
	{"track_cost_delay_timing", 18, 0},
	{"track_functions", 0, 0},
	{"track_io_timing", 0, 0},
	{"track_wal_io_timing", 0, 0},

	/* observation by libraries */
	{"auto_explain.log_analyze", 0, 0},
	{"auto_explain.log_buffers", 0, 0},
	{"auto_explain.log_format", 0, 0},
	{"auto_explain.log_min_duration", 0, 0},
	{"auto_explain.log_nested_statements", 0, 0},
	{"auto_explain.log_settings", 0, 0},
	{"auto_explain.log_timing", 0, 0},
	{"auto_explain.log_triggers", 0, 0},
	{"auto_explain.log_verbose", 0, 0},
	{"auto_explain.log_wal", 0, 0},
	{"auto_explain.sample_rate", 0, 0},
	{"pg_stat_statements.track", 0, 0},
	{"pg_stat_statements.track_planning", 0, 0},
	{"pg_stat_statements.track_utility", 0, 0},
	{"wait_event_timing.capture", 0, 0},

	/* the planner */
	{"constraint_exclusion", 0, 0},
	{"cpu_index_tuple_cost", 0, 0},
	{"cpu_operator_cost", 0, 0},
	{"cpu_tuple_cost", 0, 0},
	{"cursor_tuple_fraction", 0, 0},
	{"effective_cache_size", 0, 0},
	{"enable_async_append", 0, 0},
	{"enable_bitmapscan", 0, 0},
	{"enable_distinct_reordering", 18, 0},
	{"enable_eager_aggregate", 19, 0},
	{"enable_gathermerge", 0, 0},
	{"enable_group_by_reordering", 17, 0},
	{"enable_hashagg", 0, 0},
	{"enable_hashjoin", 0, 0},
	{"enable_incremental_sort", 0, 0},
	{"enable_indexonlyscan", 0, 0},
	{"enable_indexscan", 0, 0},
	{"enable_material", 0, 0},
	{"enable_memoize", 0, 0},
	{"enable_mergejoin", 0, 0},
	{"enable_nestloop", 0, 0},
	{"enable_parallel_append", 0, 0},
	{"enable_parallel_hash", 0, 0},
	{"enable_partition_pruning", 0, 0},
	{"enable_partitionwise_aggregate", 0, 0},
	{"enable_partitionwise_join", 0, 0},
	{"enable_presorted_aggregate", 16, 0},
	{"enable_self_join_elimination", 18, 0},
	{"enable_seqscan", 0, 0},
	{"enable_sort", 0, 0},
	{"enable_tidscan", 0, 0},
	{"from_collapse_limit", 0, 0},
	{"geqo", 0, 0},
	{"geqo_effort", 0, 0},
	{"geqo_seed", 0, 0},
	{"geqo_selection_bias", 0, 0},
	{"geqo_threshold", 0, 0},
	{"jit", 0, 0},
	{"jit_above_cost", 0, 0},
	{"jit_expressions", 0, 0},
	{"jit_inline_above_cost", 0, 0},
	{"jit_optimize_above_cost", 0, 0},
	{"jit_tuple_deforming", 0, 0},
	{"join_collapse_limit", 0, 0},
	{"max_parallel_workers", 0, 0},
	{"max_parallel_workers_per_gather", 0, 0},
	{"min_eager_agg_group_size", 19, 0},
	{"min_parallel_index_scan_size", 0, 0},
	{"min_parallel_table_scan_size", 0, 0},
	{"parallel_leader_participation", 0, 0},
	{"parallel_setup_cost", 0, 0},
	{"parallel_tuple_cost", 0, 0},
	{"plan_cache_mode", 0, 0},
	{"random_page_cost", 0, 0},
	{"recursive_worktable_factor", 0, 0},
	{"seq_page_cost", 0, 0},

	/* memory, and how pages are read */
	{"effective_io_concurrency", 0, 0},
	{"hash_mem_multiplier", 0, 0},
	{"io_combine_limit", 17, 0},
	{"maintenance_io_concurrency", 0, 0},
	{"maintenance_work_mem", 0, 0},
	{"max_parallel_maintenance_workers", 0, 0},
	{"work_mem", 0, 0},
};

#endif							/* PGTARE_ALLOWED_SETTINGS_H */
