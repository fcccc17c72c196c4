/* Reading kernel memory, and the namespace of a task or device.
 *
 * Member offsets are defines that the loader takes from the kernel's BTF (OFF_<struct>_<member>,
 * absent where the kernel has no such member): the C types of a dump are not always laid out as the
 * kernel's are.
 *
 * DIRECT_LOADS (typed pointers: tp_btf, fentry, bpf_get_current_task_btf) makes plain loads of the
 * reads, which work even where lockdown=confidentiality refuses bpf_probe_read_kernel; otherwise
 * each read is a helper call.
 */
#ifndef NSPROF_KERNEL_H
#define NSPROF_KERNEL_H

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define probe_read_at(dst, base, offset)                                                           \
	bpf_probe_read_kernel((dst), sizeof(*(dst)), (void *)(base) + (offset))

#ifdef DIRECT_LOADS
#define read_at(dst, base, offset) (*(dst) = *(typeof(dst))((void *)(base) + (offset)))
#else
#define read_at(dst, base, offset) probe_read_at(dst, base, offset)
#endif

/* A namespace's identity, read straight to where it is wanted (a program's stack is precious, see
 * hop.c). The cookie is unique while the kernel runs, and 0 where the kernel has none
 * (before 5.14). */
static __always_inline void netns_of(void *net, u64 *cookie, u32 *inode)
{
	read_at(inode, net, OFF_net_ns_inum);
#ifdef OFF_net_net_cookie
	read_at(cookie, net, OFF_net_net_cookie);
#else
	*cookie = 0;
#endif
}

/* A task that is exiting has no nsproxy: its namespace stays 0, unknown. */
static __always_inline void netns_of_task(void *task, u64 *cookie, u32 *inode)
{
	void *nsproxy = 0;
	void *net = 0;

	read_at(&nsproxy, task, OFF_task_struct_nsproxy);
	if (!nsproxy)
		return;
	read_at(&net, nsproxy, OFF_nsproxy_net_ns);
	if (net)
		netns_of(net, cookie, inode);
}

#endif
