/* See netkit.c. 0, or -1 with errno set. */
#ifndef NSPROF_NETKIT_H
#define NSPROF_NETKIT_H

int make_netkit(const char *name, const char *peer, const char *netns);

#endif
