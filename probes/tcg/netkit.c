/* A netkit pair by raw netlink: traffic netkit NAME PEER NETNS makes NAME here and PEER in NETNS (a
 * path), in the kernel's default mode (layer 3).
 *
 * iproute2 knows netkit from version 6.7 on; the one that the guest gets from this machine may be
 * older. The numbers are those of the kernel's interface (uapi/linux/if_link.h, Linux 6.7).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "netkit.h"

#define NETKIT_PEER_INFO 1

struct request {
	struct nlmsghdr head;
	struct ifinfomsg link;
	char attributes[512];
};

static void *tail(struct request *request)
{
	return (char *)request + NLMSG_ALIGN(request->head.nlmsg_len);
}

static struct rtattr *put(struct request *request, unsigned short type, const void *data,
			  size_t size)
{
	struct rtattr *made = tail(request);

	made->rta_type = type;
	made->rta_len = (unsigned short)RTA_LENGTH(size);
	if (size)
		memcpy(RTA_DATA(made), data, size);
	request->head.nlmsg_len = NLMSG_ALIGN(request->head.nlmsg_len) + RTA_SPACE(size);
	return made;
}

static void close_nest(struct request *request, struct rtattr *nest)
{
	nest->rta_len = (unsigned short)((char *)tail(request) - (char *)nest);
}

static int ask(struct request *request)
{
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char rest[1024];
	} answer;
	int socket_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), result = -1;

	if (socket_fd >= 0 && send(socket_fd, request, request->head.nlmsg_len, 0) >= 0 &&
	    recv(socket_fd, &answer, sizeof answer, 0) >=
		(ssize_t)(sizeof answer.head + sizeof answer.error)) {
		errno = -answer.error.error;
		result = errno ? -1 : 0;
	}
	if (socket_fd >= 0)
		close(socket_fd);
	return result;
}

int make_netkit(const char *name, const char *peer, const char *netns)
{
	struct request request = {
	    .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)),
		     .nlmsg_type = RTM_NEWLINK,
		     .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL}};
	const struct ifinfomsg none = {0};
	struct rtattr *info, *data, *far;
	int fd = open(netns, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || strlen(name) >= 16 || strlen(peer) >= 16)
		return -1;
	put(&request, IFLA_IFNAME, name, strlen(name) + 1);
	info = put(&request, IFLA_LINKINFO, NULL, 0);
	put(&request, IFLA_INFO_KIND, "netkit", sizeof "netkit");
	data = put(&request, IFLA_INFO_DATA, NULL, 0);
	far = put(&request, NETKIT_PEER_INFO, &none, sizeof none);
	put(&request, IFLA_IFNAME, peer, strlen(peer) + 1);
	put(&request, IFLA_NET_NS_FD, &fd, sizeof fd);
	close_nest(&request, far);
	close_nest(&request, data);
	close_nest(&request, info);
	return ask(&request);
}
