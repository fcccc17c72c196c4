"""Which kernel function belongs to which datapath category: the declarative table, nothing else.

Names are those of kernels 6.1 to 6.18 (older ones where they differ), compiler suffixes folded. The longest matching
prefix wins, an exact name wins over every prefix, a module's category comes last. How a call stack gets its category
from this table is in `categories`.

Three strengths:

- STRONG: the function is work of that category by itself;
- WEAK: a helper that belongs to whoever called it, and to the given category only where no caller has one;
- HELPER: no category of its own at all (memcpy, RCU, retpolines, time keeping, lists, BPF maps, ...).
"""

from __future__ import annotations

__all__ = [
    "CATEGORIES",
    "EXACT",
    "HELPERS",
    "HELPER_PREFIXES",
    "MODULES",
    "PREFIXES",
    "ROOTS",
    "ROOT_PREFIXES",
    "WEAK",
    "WEAK_PREFIXES",
]

#: The datapath categories in the order in which a packet meets them, then what serves them all.
CATEGORIES = (
    "syscall and socket",
    "TCP",
    "UDP",
    "IP",
    "routing",
    "neighbour",
    "qdisc and xmit",
    "veth",
    "bridge",
    "other virtual device",
    "netfilter/conntrack",
    "softirq and backlog",
    "GRO/GSO",
    "checksum",
    "copy",
    "skb alloc/free",
    "locking",
    "scheduling",
    "memory",
    "driver",
    "BPF",
    "other",
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: category -> exact names.
EXACT: dict[str, tuple[str, ...]] = {
    "syscall and socket": _words("""
        entry_SYSCALL_64 entry_SYSCALL_64_after_hwframe entry_SYSCALL_64_safe_stack do_syscall_64
        syscall_return_via_sysret x64_sys_call do_syscall_x64 syscall_exit_to_user_mode syscall_enter_from_user_mode
        syscall_trace_enter syscall_exit_work exit_to_user_mode_prepare exit_to_user_mode_loop
        irqentry_exit_to_user_mode entry_SYSENTER_compat do_fast_syscall_32 do_int80_emulation el0_svc
        el0t_64_sync_handler el0t_64_sync do_el0_svc invoke_syscall el0_svc_common syscall_exit_to_user_mode_prepare
        swapgs_restore_regs_and_return_to_usermode sockfd_lookup_light sockfd_lookup fdget fdget_pos __fget_light
        __fget_files fget fput __fput fput_many __fdget __fdget_pos move_addr_to_kernel move_addr_to_user
        copy_msghdr_from_user import_iovec import_single_range import_ubuf sendmsg_copy_msghdr recvmsg_copy_msghdr
        get_user_ifreq security_socket_sendmsg security_socket_recvmsg aa_sk_perm apparmor_socket_sendmsg
        apparmor_socket_recvmsg lock_sock_nested lock_sock_fast __lock_sock_fast __lock_sock release_sock
        __release_sock lock_sock sk_wait_data sk_stream_wait_memory wait_woken woken_wake_function
        receiver_wake_function autoremove_wake_function pollwake ep_poll_callback poll_freewait
        poll_select_set_timeout do_sys_poll do_select core_sys_select select_estimate_accuracy datagram_poll
        __skb_recv_datagram __skb_try_recv_datagram __skb_try_recv_from_queue __skb_wait_for_more_packets
        skb_free_datagram skb_recv_datagram ksys_read ksys_write vfs_read vfs_write new_sync_read new_sync_write
        rw_verify_area sync_file_range file_update_time timerfd_read eventfd_read eventfd_write pipe_read pipe_write
        anon_pipe_write anon_pipe_read kernel_sendmsg kernel_recvmsg splice_to_socket splice_direct_to_actor
        do_splice sendfile
    """),
    "UDP": _words("""
        skb_consume_udp __skb_recv_udp __first_packet_length first_packet_length
    """),
    "TCP": _words("""
        cookie_v4_check secure_tcp_seq secure_tcp_ts_off sk_stream_alloc_skb sk_stream_kill_queues bictcp_acked
        reqsk_timer_handler inet_csk_accept inet_csk_get_port mptcp_incoming_options
    """),
    "IP": _words("""
        inet_sendmsg inet_recvmsg inet6_sendmsg inet6_recvmsg ip_append_data __ip_append_data inet_send_prepare
        inet_autobind icmp_rcv icmp_reply icmp_send __icmp_send icmp_echo ping_rcv raw_local_deliver
    """),
    "routing": _words("""
        ip_route_use_hint rt_dst_alloc rt_dst_clone rt_set_nexthop rt_cache_valid rt_cache_route find_exception
        __mkroute_output __mkroute_input dst_alloc dst_release dst_init dst_destroy dst_discard
        __dst_destroy_metrics_generic ipv4_dst_check ipv4_mtu ipv4_default_advmss ipv4_dst_destroy ip6_dst_check
        ip6_mtu ip6_route_input ip6_route_output_flags fib_validate_source __fib_validate_source inet_addr_type
        inet_addr_type_table inet_dev_addr_type inet_addr_type_dev_table __inet_dev_addr_type l3mdev_fib_table
        l3mdev_fib_table_rcu l3mdev_fib_table_by_index l3mdev_update_flow l3mdev_master_ifindex_rcu
        l3mdev_link_scope_lookup rt6_score_route sk_dst_check __sk_dst_check sk_setup_caps inet_select_addr
        __ip_dev_find ip_dev_find inet_sk_rebuild_header inet_rtm_getroute dst_cow_metrics_generic
        rt6_dst_from_metrics_check __rt6_nh_dev_match nexthop_select_path find_rr_leaf rt6_get_pcpu_route
    """),
    "neighbour": _words("""
        eth_header_cache eth_header_cache_update ip_neigh_gw4 ip_neigh_gw6 ip_neigh_for_gw pneigh_lookup
    """),
    "qdisc and xmit": _words("""
        __dev_queue_xmit dev_queue_xmit dev_hard_start_xmit xmit_one validate_xmit_skb validate_xmit_skb_list
        validate_xmit_xfrm sch_direct_xmit __qdisc_run qdisc_run net_tx_action dev_qdisc_enqueue netdev_core_pick_tx
        netdev_pick_tx dev_pick_tx_zero skb_tx_hash __skb_tx_hash netif_skb_features passthru_features_check
        dev_queue_xmit_nit dev_loopback_xmit __dev_xmit_skb dev_direct_xmit __dev_direct_xmit eth_header
        skb_network_protocol __netif_schedule netif_schedule_queue netif_tx_wake_queue netif_tx_stop_all_queues
        dequeue_skb sch_handle_egress tcf_classify tcf_action_exec try_bulk_dequeue_skb get_xps_queue
        __get_xps_queue_idx bstats_update tc_run dql_completed dql_reset netdev_xmit_skip_txqueue
        rps_record_sock_flow eth_skb_pad harmonize_features qdisc_pkt_len_init qdisc_pkt_len_segs_init
        netdev_tx_completed_queue skb_dst_force
    """),
    "veth": (),
    "bridge": _words("deliver_clone maybe_deliver should_deliver"),
    "other virtual device": _words("loopback_xmit dev_lstats_add dev_lstats_read"),
    "netfilter/conntrack": _words("""
        tcp_in_window tcp_new tcp_packet ip_sabotage_in br_validate_ipv4 br_validate_ipv6 setup_pre_routing
        bridge_parent nf_hook_slow nf_hook_slow_list hash_conntrack_raw destroy_conntrack get_unique_tuple
    """),
    "softirq and backlog": _words("""
        handle_softirqs __do_softirq do_softirq run_ksoftirqd do_softirq_own_stack invoke_softirq irq_exit_rcu
        __irq_exit_rcu wakeup_softirqd raise_softirq_irqoff raise_softirq __raise_softirq_irqoff net_rx_action
        __napi_poll napi_poll napi_threaded_poll napi_threaded_poll_loop napi_schedule_prep __napi_schedule
        __napi_schedule_irqoff ____napi_schedule napi_complete_done napi_complete process_backlog enqueue_to_backlog
        netif_rx netif_rx_internal __netif_rx netif_rx_ni net_rps_action_and_irq_enable net_rps_send_ipi
        rps_trigger_softirq get_rps_cpu netif_receive_skb netif_receive_skb_internal netif_receive_skb_list
        netif_receive_skb_list_internal __netif_receive_skb __netif_receive_skb_core __netif_receive_skb_one_core
        __netif_receive_skb_list_core __netif_receive_skb_list __netif_receive_skb_list_ptype
        netif_receive_generic_xdp deliver_skb deliver_ptype_list_skb skb_defer_free_flush skb_defer_rx_timestamp
        __skb_flow_dissect skb_flow_dissect __skb_get_hash eth_type_trans __skb_get_hash_net
        __skb_get_hash_symmetric skb_get_hash_perturb sch_handle_ingress skb_rx_timestamp busy_poll_stop
        napi_busy_loop __dev_forward_skb __dev_forward_skb2 dev_forward_skb dev_forward_skb_nomtu is_skb_forwardable
        trigger_rx_softirq tasklet_action tasklet_action_common __tasklet_schedule tasklet_hi_action
        common_interrupt asm_common_interrupt __common_interrupt handle_irq_event handle_edge_irq handle_fasteoi_irq
        handle_level_irq __handle_irq_event_percpu handle_irq_event_percpu asm_sysvec_call_function_single
        sysvec_call_function_single __sysvec_call_function_single asm_sysvec_call_function sysvec_call_function
        generic_smp_call_function_single_interrupt flush_smp_call_function_queue __flush_smp_call_function_queue
        flush_smp_call_function_from_idle irq_enter_rcu irq_enter irqentry_enter irqentry_exit irq_work_run
        irq_work_run_list sysvec_irq_work asm_sysvec_irq_work asm_call_irq_on_stack error_entry error_return
        asm_call_on_stack restore_regs_and_return_to_kernel common_interrupt_return do_IRQ ret_from_intr
        xen_evtchn_do_upcall sysvec_xen_hvm_callback asm_sysvec_xen_hvm_callback __xen_evtchn_do_upcall
        evtchn_fifo_handle_events handle_percpu_irq gic_handle_irq el1h_64_irq el1_interrupt el0_interrupt
        el0t_64_irq call_on_irq_stack generic_handle_domain_irq
    """),
    "GRO/GSO": _words("""
        dev_gro_receive napi_gro_receive gro_receive_skb napi_gro_frags napi_gro_complete napi_gro_flush
        __napi_gro_flush gro_normal_list gro_normal_one gro_cells_receive gro_cell_poll gro_pull_from_frag0
        gro_list_prepare skb_gro_receive skb_gro_receive_list inet_gro_receive inet_gro_complete ipv6_gro_receive
        ipv6_gro_complete eth_gro_receive eth_gro_complete skb_segment skb_segment_list skb_gso_validate_network_len
        skb_gso_validate_mac_len __skb_gso_segment skb_mac_gso_segment inet_gso_segment ipv6_gso_segment
        skb_gso_transport_seglen skb_eth_gso_segment gro_flush_oldest gso_features_check vlan_gro_receive
        vlan_gro_complete tcp_gso_segment napi_reuse_skb napi_get_frags gro_complete gro_try_pull_from_frag0
        __gro_flush
    """),
    "checksum": _words("""
        csum_partial do_csum csum_tcpudp_nofold csum_ipv6_magic skb_checksum __skb_checksum skb_checksum_help
        skb_checksum_setup __skb_checksum_complete __skb_checksum_complete_head skb_checksum_trimmed
        skb_csum_hwoffload_help csum_block_add_ext csum_partial_ext ip_compute_csum ip_fast_csum
        __skb_gro_checksum_complete skb_crc32c_csum_help crc32c sctp_csum_update csum_fold inet_proto_csum_replace4
        inet_proto_csum_replace16 inet_proto_csum_replace_by_diff skb_postpull_rcsum_slow udp_set_csum udp4_hwcsum
        udp6_set_csum pskb_trim_rcsum_slow
    """),
    "copy": _words("""
        copy_user_generic copy_user_generic_string copy_user_generic_unrolled copy_user_enhanced_fast_string
        rep_movs_alternative copy_user_fast_string __copy_user_nocache _copy_to_user _copy_from_user copy_from_user
        copy_to_user __arch_copy_to_user __arch_copy_from_user raw_copy_from_user raw_copy_to_user _copy_to_iter
        _copy_from_iter _copy_from_iter_full _copy_from_iter_nocache _copy_from_iter_flushcache copy_page_to_iter
        copy_page_from_iter copyin copyout copy_to_user_iter copy_from_user_iter memcpy_to_iter memcpy_from_iter
        skb_copy_datagram_iter skb_copy_datagram_from_iter skb_copy_datagram_from_iter_full __skb_datagram_iter
        simple_copy_to_iter skb_copy_and_csum_datagram_msg skb_copy_and_csum_datagram skb_copy_and_csum_bits
        skb_copy_and_csum_dev csum_and_copy_from_iter csum_and_copy_to_iter csum_and_copy_from_user
        csum_and_copy_to_user csum_partial_copy_generic csum_partial_copy csum_partial_copy_nocheck
        csum_partial_copy_from_user csum_partial_copy_to_user csum_and_copy_to_user_iter
        csum_and_copy_from_user_iter ip_generic_getfrag udplite_getfrag skb_copy_bits skb_store_bits skb_copy
        skb_copy_expand __pskb_copy_fclone pskb_copy skb_copy_header skb_copy_ubufs ___pskb_trim __pskb_pull_tail
        pskb_expand_head skb_realloc_headroom skb_expand_head skb_cow_data skb_ensure_writable skb_linearize
        __skb_linearize skb_splice_from_iter skb_do_copy_data_nocache skb_zerocopy skb_zerocopy_iter_stream
        __zerocopy_sg_from_iter zerocopy_sg_from_iter skb_pp_cow_data skb_cow_data_for_xdp
        veth_convert_skb_to_xdp_buff
    """),
    "skb alloc/free": _words("""
        __alloc_skb alloc_skb_with_frags sock_alloc_send_pskb sock_alloc_send_skb sock_wmalloc sock_omalloc
        sock_wfree __sock_wfree sock_rfree sock_efree sock_edemux sock_ofree build_skb __build_skb
        __build_skb_around build_skb_around napi_build_skb __napi_alloc_skb napi_alloc_skb __netdev_alloc_skb
        netdev_alloc_skb napi_skb_cache_get napi_skb_cache_put napi_consume_skb kfree_skb consume_skb __kfree_skb
        kfree_skbmem kfree_skb_reason kfree_skb_partial kfree_skb_list kfree_skb_list_reason __consume_stateless_skb
        sk_skb_reason_drop __sk_skb_reason_drop skb_release_head_state skb_release_data skb_release_all
        skb_free_head skb_clone __skb_clone skb_morph skb_clone_sk skb_unclone_keeptruesize skb_attempt_defer_free
        kmalloc_reserve skb_headers_offset_update __copy_skb_header skb_split skb_trim skb_put skb_push skb_pull
        pskb_put skb_pull_data skb_pull_rcsum skb_queue_tail skb_queue_head skb_dequeue skb_dequeue_tail skb_unlink
        skb_append skb_queue_purge skb_queue_purge_reason skb_rbtree_purge skb_condense skb_set_owner_w
        skb_orphan_partial skb_scrub_packet __napi_kfree_skb napi_alloc_frag __napi_alloc_frag_align
        __netdev_alloc_frag_align page_frag_free page_frag_alloc_align __page_frag_alloc_align page_frag_alloc
        __page_frag_cache_drain __page_frag_cache_refill napi_pp_put_page skb_page_frag_refill sk_page_frag_refill
        dev_kfree_skb_any_reason dev_kfree_skb_irq_reason dev_kfree_skb_any __dev_kfree_skb_any __dev_kfree_skb_irq
        skb_ext_del __skb_ext_del __skb_ext_put skb_ext_add __skb_ext_alloc skb_tstamp_tx __skb_tstamp_tx
        sock_recv_timestamp skb_prepare_seq_read mm_account_pinned_pages sock_zerocopy_put msg_zerocopy_callback
    """),
    "locking": _words("""
        queued_spin_lock_slowpath native_queued_spin_lock_slowpath pv_queued_spin_lock_slowpath
        __pv_queued_spin_lock_slowpath queued_read_lock_slowpath queued_write_lock_slowpath osq_lock osq_unlock
        __mutex_lock __mutex_lock_slowpath mutex_lock mutex_unlock mutex_trylock mutex_lock_interruptible
        mutex_lock_killable __mutex_unlock_slowpath mutex_spin_on_owner mutex_optimistic_spin down_read down_write
        up_read up_write down_read_trylock rwsem_down_read_slowpath rwsem_down_write_slowpath rwsem_optimistic_spin
        rwsem_spin_on_owner rwsem_wake percpu_down_write percpu_up_write rtnl_lock rtnl_unlock __rtnl_unlock
        rtnl_trylock rtnl_lock_killable lock_acquire lock_release __lock_acquire rt_spin_lock rt_spin_unlock
        rt_mutex_slowlock do_raw_spin_lock futex_wait futex_wake do_futex futex_wait_queue virt_spin_lock
        __pv_queued_spin_unlock_slowpath __pv_queued_spin_unlock kvm_wait pv_wait pv_kick
    """),
    "scheduling": _words("""
        schedule __schedule __schedule_loop schedule_idle schedule_timeout schedule_hrtimeout
        schedule_hrtimeout_range schedule_hrtimeout_range_clock preempt_schedule preempt_schedule_common
        preempt_schedule_irq preempt_schedule_notrace preempt_schedule_thunk __cond_resched dynamic_cond_resched
        io_schedule yield do_sched_yield finish_task_switch context_switch switch_mm_irqs_off switch_fpu_return
        __switch_to __switch_to_asm switch_mm prepare_task_switch pick_next_task pick_next_task_fair pick_task_fair
        pick_next_entity pick_eevdf put_prev_task_fair put_prev_entity set_next_entity set_next_task_fair
        set_next_task_idle enqueue_task enqueue_task_fair enqueue_entity dequeue_task dequeue_task_fair
        dequeue_entity dequeue_entities __enqueue_entity __dequeue_entity place_entity update_curr update_curr_se
        update_load_avg update_cfs_group reweight_entity reweight_eevdf update_rq_clock update_rq_clock_task
        update_min_vruntime check_preempt_wakeup check_preempt_wakeup_fair wakeup_preempt check_preempt_curr
        ttwu_do_activate ttwu_do_wakeup ttwu_queue_wakelist ttwu_queue try_to_wake_up sched_ttwu_pending
        wake_up_process default_wake_function select_task_rq_fair select_idle_sibling select_idle_cpu
        available_idle_cpu resched_curr __resched_curr native_smp_send_reschedule activate_task deactivate_task
        scheduler_tick sched_tick task_tick_fair sched_balance_newidle newidle_balance load_balance sched_balance_rq
        sched_balance_domains rebalance_domains run_rebalance_domains sched_balance_softirq nohz_run_idle_balance
        nohz_balance_exit_idle sched_clock_cpu sched_clock_idle_wakeup_event psi_task_change psi_task_switch
        psi_group_change cpuacct_charge cpu_util dl_scaled_delta_exec update_dl_rq_load_avg update_rt_rq_load_avg
        update_irq_load_avg update_blocked_averages cgroup_rstat_updated __cgroup_account_cputime __calc_delta
        avg_vruntime entity_eligible vruntime_eligible perf_event_task_sched_in perf_event_task_sched_out
        __perf_event_task_sched_in __perf_event_task_sched_out rcu_note_context_switch rseq_update_cpu_node_id
        __rseq_handle_notify_resume mm_cid_switch switch_mm_cid sched_mm_cid_remote_clear task_work_run
        kthread_should_stop do_idle cpu_startup_entry start_secondary rest_init cpu_idle_loop default_idle_call
        default_idle call_cpuidle cpuidle_enter cpuidle_enter_state cpuidle_select cpuidle_reflect cpuidle_idle_call
        menu_select menu_reflect teo_select teo_reflect ladder_select native_safe_halt pv_native_safe_halt
        acpi_safe_halt acpi_idle_enter acpi_idle_do_entry haltpoll_select arch_cpu_idle arch_cpu_idle_enter
        arch_cpu_idle_exit poll_idle intel_idle mwait_idle cpu_idle_poll need_resched nr_iowait_cpu
        get_next_timer_interrupt get_cpu_idle_time_us do_nanosleep hrtimer_nanosleep common_nsleep process_timeout
        msleep usleep_range_state add_wait_queue remove_wait_queue prepare_to_wait prepare_to_wait_exclusive
        prepare_to_wait_event finish_wait worker_thread process_one_work process_scheduled_works kthread
        kthread_worker_fn ret_from_fork ret_from_fork_asm smpboot_thread_fn rcu_gp_kthread wake_q_add wake_up_q
        wake_up_new_task sched_autogroup_exit migrate_task_to migration_cpu_stop read_hpet timekeeping_advance
        update_wall_time update_process_times account_process_tick account_user_time account_system_time
        account_system_index_time account_idle_time tick_sched_handle tick_sched_timer tick_sched_do_timer
        tick_nohz_handler tick_periodic run_posix_cpu_timers local_apic_timer_interrupt sysvec_reschedule_ipi
        asm_sysvec_reschedule_ipi scheduler_ipi sched_ipi
    """),
    "memory": _words("""
        exc_page_fault asm_exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault do_anonymous_page
        do_fault do_wp_page do_read_fault do_fault_around filemap_map_pages filemap_fault wp_page_copy
        lock_vma_under_rcu lock_mm_and_find_vma get_page_from_freelist __alloc_pages __alloc_pages_noprof
        __alloc_frozen_pages_noprof alloc_pages alloc_pages_noprof alloc_pages_mpol alloc_pages_mpol_noprof
        alloc_pages_node_noprof alloc_frozen_pages_noprof __alloc_pages_slowpath __alloc_pages_bulk
        alloc_pages_bulk_noprof rmqueue rmqueue_bulk __rmqueue_pcplist free_unref_page free_unref_page_commit
        free_unref_page_prepare free_unref_folios free_frozen_pages __free_frozen_pages free_frozen_page_commit
        free_pcppages_bulk free_one_page __free_one_page __free_pages __free_pages_ok free_pages __free_pages_core
        free_pages_prepare prep_new_page post_alloc_hook clear_page_erms clear_page_rep clear_page_orig
        clear_huge_page clear_highpages_kasan_tagged release_pages folios_put_refs folio_add_lru lru_add_drain_cpu
        zap_pte_range unmap_page_range unmap_vmas tlb_finish_mmu tlb_flush_mmu flush_tlb_mm_range flush_tlb_func
        native_flush_tlb_one_user copy_page_range dup_mm dup_mmap exit_mmap vm_mmap_pgoff do_mmap mmap_region
        do_munmap __vm_munmap madvise_dontneed_free shrink_node kswapd charge_memcg try_charge_memcg
        mem_cgroup_charge __mem_cgroup_charge mem_cgroup_charge_skmem mem_cgroup_uncharge_skmem mem_cgroup_sk_charge
        mem_cgroup_sk_uncharge refill_stock consume_stock drain_stock obj_cgroup_charge obj_cgroup_uncharge
        page_counter_try_charge page_counter_uncharge page_counter_cancel __memcg_slab_post_alloc_hook
        __memcg_slab_free_hook __memcg_kmem_charge_page __memcg_kmem_uncharge_page refill_obj_stock vmalloc vfree
        __vmalloc_node_range
    """),
    "driver": _words("""
        iommu_dma_map_page iommu_dma_unmap_page iommu_dma_map_phys iommu_dma_unmap_phys dma_map_page_attrs
        dma_unmap_page_attrs dma_map_phys dma_unmap_phys dma_direct_map_page dma_direct_unmap_page
        swiotlb_tbl_map_single swiotlb_tbl_unmap_single swiotlb_map swiotlb_bounce dma_sync_single_for_cpu
        dma_sync_single_for_device alloc_iova alloc_iova_fast free_iova free_iova_fast intel_iommu_map_pages
        virtqueue_add virtqueue_add_split virtqueue_add_outbuf virtqueue_kick virtqueue_notify virtqueue_get_buf
        virtqueue_get_buf_ctx virtqueue_kick_prepare vring_interrupt vp_notify vp_interrupt detach_buf_split
        start_xmit free_old_xmit free_old_xmit_skbs skb_xmit_done receive_buf page_to_skb try_fill_recv
        receive_mergeable mlx5e_napi_poll iowrite16 iowrite32 ioread32 ioread8 pci_msi_mask_irq
    """),
    "BPF": _words("""
        __cgroup_bpf_run_filter_skb __cgroup_bpf_run_filter_sk __cgroup_bpf_run_filter_sock_addr run_filter
        trace_call_bpf
    """),
    "other": (),
}

#: category -> prefixes of names.
PREFIXES: dict[str, tuple[str, ...]] = {
    "syscall and socket": _words("""
        __sys_ __x64_sys_ __do_sys_ __se_sys_ __ia32_sys_ __arm64_sys_ ___sys_ ____sys_ ksys_ sock_ sockfs_ __sock_
        sk_ __sk_ sel_netif selinux_socket security_ apparmor_ aa_ unix_ scm_ ep_ epoll_ do_epoll poll_ __pollwait
        ppoll io_uring io_ __io_ copy_msghdr do_sock netlink_ __netlink __skb_recv do_recvmmsg do_sendmmsg sockfd_
        sockopt
    """),
    "TCP": _words("""
        tcp_ __tcp_ tcp4_ tcp6_ tcpv6_ inet_csk_ inet_twsk inet_reqsk inet_ehash __inet_lookup inet_lookup
        inet6_lookup __inet6_lookup inet_hash inet_unhash inet_bind_hash bictcp_ cubictcp_ bbr_ dctcp_ reqsk_ mptcp_
        cookie_ sk_stream_ __sk_stream tls_ __inet_hash __inet_check inet_shutdown __inet_stream inet_stream
        inet_accept
    """),
    "UDP": _words("""
        udp_ __udp udpv6_ udp4_ udp6_ udplite_ udp_tunnel __udp_tunnel
    """),
    "IP": _words("""
        ip_ __ip_ ip6_ __ip6_ ipv6_ ipv4_ icmp_ icmpv6_ __icmp raw_ rawv6_ rawv4_ igmp_ inet_ inet6_ inet_frag
        fragment inet_peer ping_ ip4_ xfrm_ __xfrm esp_ mroute ndisc_recv mld_ addrconf_ ipip_ mpls_
    """),
    "routing": _words("""
        ip_route_ __ip_route ip6_route_ ip6_pol_route ip6_rt fib_ __fib fib4_ fib6_ __fib6 rt_ rt6_ __rt6 ip_rt_
        ip_mkroute ip6_dst dst_ __dst ipv4_dst ipv6_dst l3mdev_ nexthop_ ip_dst inet_rtm ipv4_blackhole trie_
        leaf_walk resize_ inet_rth ip6_blackhole
    """),
    "neighbour": _words("""
        neigh_ __neigh arp_ __ndisc ndisc_ __ipv4_neigh __ipv6_neigh pneigh_ ___neigh
    """),
    "qdisc and xmit": _words("""
        qdisc_ __qdisc pfifo_ fq_codel_ fq_ htb_ tbf_ hfsc_ codel_ noqueue_ mq_ mqprio_ prio_ sfq_ cake_ netem_ sch_
        ingress_ clsact_ tcf_ tc_ cls_ fl_ u32_ basic_ mall_ tcindex netdev_tx psched_ dev_queue_ validate_xmit
        skb_tx_ __skb_tx dev_xmit act_ gact_ police_ mirred_ etf_ taprio_ red_ dualpi2_ bfifo_ packet_ tpacket_ prb_
        __packet dql_
    """),
    "veth": _words("veth_ __veth"),
    "bridge": _words("""
        br_ __br_ fdb_ __fdb_ nbp_ brnf_ ebt_ ebtable_ ebt_do brport_ stp_ __stp
    """),
    "other virtual device": _words("""
        macvlan_ __macvlan macvtap_ macv_ ipvlan_ __ipvlan ipvtap_ vrf_ __vrf vxlan_ __vxlan geneve_ gre_ __gre
        erspan_ ipgre_ tun_ __tun tap_ __tap netkit_ dummy_ loopback_ vlan_ __vlan ifb_ team_ bond_ __bond wg_
        wireguard lwtunnel_ iptunnel_ tnl_ ip_tunnel ip6_tnl ip6gre_ ipip6_ sit_ vti_ bareudp_ ovs_
        do_execute_actions nlmon_
    """),
    "netfilter/conntrack": _words("""
        br_nf_ nf_ __nf nft_ __nft nfnl_ nfnetlink nfqnl_ ipt_ ip6t_ xt_ iptable_ ip6table_ arpt_ ct_ ctnetlink
        conntrack_ __nf_ct ipv4_conntrack ipv6_conntrack ip_vs_ ip_set_ hash_ip hash_net nf_conntrack masquerade_
        nat_ ebt_nat ipv4_confirm ipv6_confirm ipv4_helper hash_conntrack __hash_conntrack flow_offload flowtable
    """),
    "softirq and backlog": _words("""
        napi_ __napi ____napi netif_rx __netif_rx netif_receive __netif_receive rps_ __rps net_rx_ net_rps backlog_
        tasklet_ __tasklet handle_irq generic_handle_irq irq_ __irq_ softirq_ asm_sysvec_ sysvec_ __sysvec apic_
        kvm_guest_apic x2apic_ native_apic_ ack_ handle_edge handle_fasteoi __raise_softirq raise_softirq
        smp_call_function __smp_call generic_smp generic_exec_single ipi_ xdp_ __xdp bpf_prog_run_generic_xdp
        generic_xdp do_xdp_generic skb_flow_ __skb_flow __skb_get_hash call_function
    """),
    "GRO/GSO": _words("""
        gro_ __gro napi_gro dev_gro skb_gro __skb_gro skb_gso __skb_gso skb_segment tcp_gro_ tcp4_gro tcp6_gro
        tcp4_gso tcp6_gso tcp_gso __tcp_gso udp_gro udp4_gro udp6_gro udp4_ufo udp6_ufo __udp_gso udp_gso inet_gro
        inet_gso ipv6_gro ipv6_gso skb_mac_gso vxlan_gro gre_gro gre_gso eth_gro ipip_gro ipip_gso
    """),
    "checksum": _words("""
        csum_ __csum skb_checksum __skb_checksum tcp_v4_send_check tcp_v6_send_check __tcp_v4_send_check
        __tcp_v6_send_check udp4_hwcsum udp_v6_send_check inet_proto_csum skb_csum crc32c crc32_ nf_ip_checksum
        nf_ip6_checksum nf_checksum udp4_csum_init udp6_csum_init tcp_checksum_complete __tcp_checksum udp_csum_
        ip_csum
    """),
    "copy": _words("""
        copy_user_ _copy_to_ _copy_from_ skb_copy_ __skb_copy csum_and_copy csum_partial_copy __copy_from_user
        __copy_to_user copy_to_iter copy_from_iter __pskb_copy pskb_copy skb_zerocopy
    """),
    "skb alloc/free": _words("""
        __alloc_skb alloc_skb kfree_skb consume_skb __kfree_skb skb_release skb_clone __skb_clone napi_alloc_
        __napi_alloc netdev_alloc_ __netdev_alloc build_skb __build_skb skb_queue_ skb_put skb_push skb_pull
        page_pool_ __page_pool page_frag_ __page_frag skb_frag skb_defer skb_ext_ __skb_ext skb_free skb_dequeue
        skb_unref skb_
    """),
    "locking": _words("""
        mutex_ __mutex down_read down_write up_read up_write rwsem_ __rwsem queued_ native_queued pv_queued
        __pv_queued osq_ rtnl_lock rt_mutex percpu_rwsem futex_ __futex
    """),
    "scheduling": _words("""
        sched_ __sched schedule_ ttwu_ __ttwu pick_ __pick enqueue_task enqueue_entity dequeue_ wake_up_ select_task
        select_idle try_to_wake update_load update_rq update_curr psi_ tick_ __tick hrtimer_ __hrtimer timer_
        __timer run_timer call_timer __run_timer timekeeping_ update_sd update_sg sugov_ cpufreq_ cpuidle_ menu_
        haltpoll_ teo_ nohz_ __nohz rebalance_ load_balance kthread_ workqueue_ __queue_work queue_work
        queue_delayed process_one account_ __account cpuacct_ cputime_ vtime_ irqtime_ task_tick task_h task_sched
        put_prev set_next entity_ calc_ rcu_sched_clock schedule clockevents_ lapic_ run_local_timers rseq_ __rseq
        switch_ __switch do_nanosleep alarm_ posix_cpu posix_timer it_real mod_timer __mod_timer lock_timer_base
        yield_task rq_ update_cfs update_se update_dl update_rt update_blocked dl_ __dl __rt_ wait_woken delayacct
        stop_one cpu_stop migrate_
    """),
    "memory": _words("""
        do_anonymous do_fault do_wp do_swap do_huge handle_mm handle_pte __handle_mm filemap_ __filemap folio_
        __folio lru_ free_unref free_pcp free_pages __free_pages get_page_from rmqueue __rmqueue alloc_pages
        __alloc_pages alloc_frozen __alloc_frozen free_frozen __free_frozen clear_page mem_cgroup __mem_cgroup
        memcg_ __memcg obj_cgroup page_counter charge_memcg try_charge mod_memcg __mod_memcg mod_lruvec __mod_lruvec
        mod_node __mod_node zap_ unmap_ tlb_ flush_tlb vma_ mmap_ __mmap do_mmap do_munmap mas_ mtree_ pte_ pmd_
        get_user_pages gup_ vmalloc vfree __vmalloc exit_mmap dup_mm shrink_ compact_ khugepaged swap_ wp_page __vm_
        vm_ exc_page_fault asm_exc_page do_user_addr mmput mprotect_ anon_vma page_add page_remove
    """),
    "driver": _words("""
        virtnet_ virtio_ virtqueue_ vring_ vp_ vhost_ e1000_ e1000e_ igb_ igc_ ixgbe_ ixgbevf_ i40e_ iavf_ ice_
        idpf_ mlx4_ mlx5_ mlx5e_ bnxt_ bnx2x_ tg3_ rtl8169_ r8169_ rtl_ ena_ gve_ netvsc_ vmbus_ hv_ xennet_ xenvif_
        xen_net vmxnet3_ be_ qede_ qed_ nfp_ sfc_ efx_ ef100_ cxgb4_ t4_ enic_ fec_ stmmac_ macb_ mvneta_ mvpp2_
        dpaa2_ ionic_ hns3_ hinic_ atl_ aq_ nvme_ blk_ ata_ scsi_ usb_ xhci_ iommu_ intel_iommu amd_iommu dma_
        swiotlb_ iova_ __iommu ahci_ pci_ msi_ __dma cdc_ usbnet_ mana_ xsk_ xp_ serial8250_ uart_ 9p_ p9_ v9fs_
    """),
    "BPF": _words("""
        bpf_prog_ __bpf_prog cls_bpf __cgroup_bpf cgroup_bpf bpf_trampoline bpf_dispatcher sk_filter __sk_filter
        bpf_
    """),
}

#: category -> helpers that follow their caller and are of this category where no caller has one.
WEAK: dict[str, tuple[str, ...]] = {
    "syscall and socket": _words("""
        __get_user_4 __get_user_8 __put_user_4 __put_user_8 __get_user_nocheck_8 __put_user_nocheck_4
    """),
    "locking": _words("""
        _raw_spin_lock _raw_spin_lock_bh _raw_spin_lock_irq _raw_spin_lock_irqsave _raw_spin_trylock
        _raw_spin_trylock_bh _raw_spin_unlock _raw_spin_unlock_bh _raw_spin_unlock_irq _raw_spin_unlock_irqrestore
        _raw_read_lock _raw_read_lock_bh _raw_read_unlock _raw_read_unlock_bh _raw_read_lock_irqsave
        _raw_read_unlock_irqrestore _raw_write_lock _raw_write_lock_bh _raw_write_unlock _raw_write_unlock_bh
        _raw_write_lock_irq _raw_write_unlock_irq _raw_write_lock_irqsave _raw_write_unlock_irqrestore
        __raw_spin_lock __raw_spin_unlock preempt_count_add preempt_count_sub
        __raw_callee_save___pv_queued_spin_unlock __raw_callee_save___native_queued_spin_unlock in_lock_functions
    """),
    "softirq and backlog": _words("""
        __local_bh_enable_ip __local_bh_disable_ip local_bh_enable local_bh_disable native_apic_msr_eoi
        native_apic_msr_write kick_ilb native_write_msr default_send_IPI_single_phys
    """),
    "memory": _words("""
        kmem_cache_alloc kmem_cache_alloc_noprof kmem_cache_alloc_node kmem_cache_alloc_node_noprof
        kmem_cache_alloc_lru kmem_cache_free kmem_cache_alloc_bulk kmem_cache_alloc_bulk_noprof kmem_cache_free_bulk
        __kmem_cache_alloc_node __kmem_cache_alloc_bulk ___slab_alloc __slab_alloc __slab_free
        slab_free_after_rcu_debug new_slab allocate_slab get_partial_node put_cpu_partial __unfreeze_partials
        get_any_partial ___cache_free do_slab_free slab_pre_alloc_hook slab_post_alloc_hook kmalloc_trace
        kmalloc_node_trace kmalloc_slab kfree kmalloc_large __kmem_cache_free deactivate_slab free_to_partial_list
        discard_slab kmalloc_size_roundup refill_objects __pcs_replace_empty_main __pcs_replace_full_main
        alloc_from_pcs free_to_pcs barn_replace_empty_sheaf barn_replace_full_sheaf memcg_alloc_abort_single ksize
        __ksize kvfree kvmalloc_node pcpu_alloc free_percpu setup_object build_detached_freelist should_failslab
        cache_from_obj
    """),
}
WEAK_PREFIXES: dict[str, tuple[str, ...]] = {
    "locking": _words("""
        _raw_spin_ _raw_read_ _raw_write_ __raw_spin __raw_callee_save___pv_queued lockref_
    """),
    "memory": _words("""
        kmem_cache_ __kmem_cache kmalloc_ __kmalloc kfree slab_ __slab ___slab kvmalloc kvfree pcpu_ percpu_
    """),
    "scheduling": _words("""
        rcu_core __rcu_read_unlock_special rcu_do_batch rcu_ __rcu srcu_ __srcu call_rcu __call_rcu sched_clock
    """),
}

#: Helpers that belong to whoever called them.
HELPERS = frozenset(
    _words("""
        memcpy __memcpy memcpy_orig memcpy_erms memcpy_fast memmove __memmove memmove_erms memset __memset
        memset_orig memset_erms memcmp strlen strnlen strcmp strncmp strscpy strlcpy sized_strscpy __fentry__
        ftrace_caller ftrace_regs_caller ftrace_stub __SCT__cond_resched __SCT__might_resched
        __SCT__preempt_schedule __rcu_read_lock __rcu_read_unlock rcu_read_unlock_strict rcu_all_qs ktime_get
        ktime_get_with_offset ktime_get_real_ts64 ktime_get_mono_fast_ns ktime_get_coarse_real_ts64 ktime_get_raw
        ktime_get_real_seconds ktime_get_ts64 read_tsc kvm_clock_get_cycles pvclock_clocksource_read
        pvclock_clocksource_read_nowd native_sched_clock sched_clock local_clock sched_clock_noinstr
        local_clock_noinstr native_save_fl native_irq_disable native_irq_enable siphash_1u32 siphash_2u32
        siphash_3u32 siphash_4u32 siphash_1u64 siphash_2u64 siphash_3u64 hsiphash_1u32 jhash __jhash_nwords
        __siphash_unaligned refcount_warn_saturate refcount_dec_and_lock refcount_dec_if_one __list_add_valid
        __list_add_valid_or_report __list_del_entry_valid __list_del_entry_valid_or_report rb_insert_color rb_erase
        rb_next rb_prev rb_first __rb_insert_augmented __rb_erase_color __x86_return_thunk zen_untrain_ret
        srso_alias_safe_ret retbleed_return_thunk __warn_thunk srso_return_thunk its_return_thunk __stack_chk_fail
        __check_object_size check_stack_object check_heap_object __virt_addr_valid __check_heap_object
        find_vmap_area find_vm_area usercopy_warn __cfi_slowpath debug_smp_processor_id __this_cpu_preempt_check
        this_cpu_cmpxchg16b_emu get_random_u32 get_random_bytes _get_random_bytes crng_make_state prandom_u32_state
        get_random_u16 __softirqentry_text_start __softirqentry_text_end __cond_resched_lock sched_clock_stable
        int_sqrt int_pow iov_iter_advance iov_iter_revert iov_iter_init iov_iter_npages iov_iter_zero __ioread32
        fault_in_readable fault_in_iov_iter_readable __bitmap_weight _find_next_bit _find_first_bit
        _find_next_and_bit find_next_bit cpumask_next div64_u64 __udivti3 __wake_up __wake_up_common
        __wake_up_common_lock __wake_up_sync_key __wake_up_locked_key __wake_up_sync complete complete_all
        percpu_counter_add_batch __percpu_counter_sum percpu_counter_set idr_find xa_load xas_load xas_find
        radix_tree_lookup gen_pool_alloc rhashtable_insert_slow rht_bucket_nested __rht_bucket_nested current_time
    """)
)
HELPER_PREFIXES: tuple[str, ...] = _words("""
        __x86_indirect __x86_return srso_ retbleed_ entry_untrain __SCT__ __SCK__ __static_call memcpy memset
        memmove memcmp ktime_ read_tsc pvclock_ kvm_clock siphash hsiphash jhash rb_ rht_ rhashtable_ rhltable_
        __rhashtable refcount_ list_ __list ftrace_ __ftrace trace_ __trace __bpf_trace_ perf_trace_ __perf
        trace_event __traceiter_ __probestub tracing_ kasan_ __kasan __asan_ kmsan_ kcsan_ lockdep_ debug_ __warn
        iov_iter_ iterate_ __iov string_ str __check_object check_ xas_ xa_ __xa idr_ ida_ get_random
    """)

#: Frames under which anything at all may run: they answer for themselves and for known helpers, while a function that
#: the table does not know and that has only these above it is `other` (a system call into a file system, say).
ROOTS = frozenset(
    _words("""
        entry_SYSCALL_64 entry_SYSCALL_64_after_hwframe do_syscall_64 x64_sys_call do_syscall_x64 el0_svc
        el0t_64_sync el0t_64_sync_handler do_el0_svc invoke_syscall el0_svc_common vfs_read vfs_write ksys_read
        ksys_write new_sync_read new_sync_write __fput fput task_work_run exit_to_user_mode_loop
        syscall_exit_to_user_mode irqentry_exit_to_user_mode handle_softirqs __do_softirq do_softirq
        do_softirq_own_stack run_ksoftirqd irq_exit_rcu __irq_exit_rcu kthread worker_thread process_one_work
        process_scheduled_works ret_from_fork ret_from_fork_asm smpboot_thread_fn tasklet_action
        tasklet_action_common handle_irq_event handle_irq_event_percpu __handle_irq_event_percpu do_IRQ
        common_interrupt asm_common_interrupt __common_interrupt flush_smp_call_function_queue run_timer_softirq
        __run_timers call_timer_fn hrtimer_interrupt __hrtimer_run_queues do_futex do_idle cpu_startup_entry
        start_secondary
    """)
)
ROOT_PREFIXES: tuple[str, ...] = _words("""
        __x64_sys_ __do_sys_ __se_sys_ __ia32_sys_ __arm64_sys_ asm_sysvec_ sysvec_ __sysvec_
    """)

#: module -> category, where the name alone says nothing.
MODULES: dict[str, str] = {
    "veth": "veth",
    "bridge": "bridge",
    "br_netfilter": "netfilter/conntrack",
    "stp": "bridge",
    "llc": "bridge",
    **dict.fromkeys(
        _words("""
        macvlan macvtap ipvlan vrf vxlan geneve tun tap netkit dummy 8021q ifb bonding team wireguard ip_gre gre sit
        ipip openvswitch
    """),
        "other virtual device",
    ),
    **dict.fromkeys(
        _words("""
        nf_conntrack nf_tables nf_nat nf_defrag_ipv4 nf_defrag_ipv6 ip_tables ip6_tables x_tables iptable_filter
        iptable_nat ip_set ip_vs
    """),
        "netfilter/conntrack",
    ),
    **dict.fromkeys(
        _words("""
        virtio_net virtio_ring virtio_pci e1000 e1000e igb igc ixgbe ixgbevf i40e iavf ice mlx4_en mlx4_core
        mlx5_core bnxt_en tg3 r8169
    """),
        "driver",
    ),
    **dict.fromkeys(
        _words("""
        ena gve hv_netvsc xen_netfront vmxnet3 vhost vhost_net virtio 9pnet 9p 9pnet_virtio netfs
    """),
        "driver",
    ),
    **dict.fromkeys(
        _words("""
        sch_htb sch_fq sch_fq_codel sch_tbf sch_netem sch_cake cls_u32 cls_flower act_mirred sch_ingress af_packet
    """),
        "qdisc and xmit",
    ),
    "cls_bpf": "BPF",
    "sctp": "other",
    "tcp_cubic": "TCP",
    "tcp_bbr": "TCP",
    "tls": "TCP",
    "unix": "syscall and socket",
}
