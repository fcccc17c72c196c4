/* nsprof's traffic program for simulations: one thread that holds both ends, each in its network
 * namespace.
 *
 *   traffic workload=udp-rr family=4 size=64 packets=10 samples=20 warmup=200 client=NETNS
 * server=NETNS address=A count=NETNS device=DEV [attempt=N tries=N] [-- COMMAND...]
 *
 * Every sample is: mark, `packets` times one transaction (or datagram, or write), mark. With both
 * ends in one thread every packet is sent, carried and received in a fixed order, so nothing but
 * the path is counted: no scheduler, no wake-up of another task. NETNS is a path, or "-" for the
 * present one. Results go to stdout, one "NSPROF word ..." a line. The marks are described in
 * plugin.c.
 *
 * Networks differ in their luck with hash buckets. So this program is started on one network after
 * another (attempt=1, 2, ...) and measures on the first that is as quick as the quickest seen, once
 * `tries` have been seen; on the others it ends with status TRY_ANOTHER. Up to then nothing is
 * counted, so this is quick.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/random.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "netkit.h"

#define MARK_BYTES(kind, region) ".byte 0x0f,0x1f,0x84,0x00," #kind "," #region ",0x53,0x4e\n"
#define MARK(kind, region) __asm__ volatile(MARK_BYTES(kind, region)::: "memory")
/* Whose system calls follow: the client's, or the server's. */
#define CLIENT_ACTS MARK(4, 1)
#define SERVER_ACTS MARK(4, 2)
#define SAMPLES_MAX 4096
#define BUFFER_SIZE (1 << 18)
#define PORT 9000
#define TRY_ANOTHER 3
#define PROBES 3
#define SEEN "/run/placements" /* ticks of the networks seen so far, one a line */

static const char *workload = "udp-rr", *client_netns = "-", *server_netns = "-", *address,
		  *count_netns, *device;
static int family = 4, size = 64, packets = 10, samples = 20, warmup = 200, attempt = 1, tries = 1;
static char **command;
static int own_netns;
static int client = -1, server = -1, listener = -1;
static struct sockaddr_storage server_name, client_name;
static socklen_t name_size;
static char send_buffer[BUFFER_SIZE] __attribute__((aligned(4096)));
static char receive_buffer[BUFFER_SIZE] __attribute__((aligned(4096)));
static uint64_t ticks[SAMPLES_MAX];

static void die(const char *format, ...)
{
	va_list words;
	int error = errno;

	printf("NSPROF failed ");
	va_start(words, format);
	vprintf(format, words);
	va_end(words);
	printf(": %s\n", strerror(error));
	exit(1);
}

static inline uint64_t now_ticks(void)
{
	uint32_t low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
}

/* ---- sockets ---- */

static void enter(const char *netns)
{
	int fd = strcmp(netns, "-") ? open(netns, O_RDONLY | O_CLOEXEC) : own_netns;

	if (fd < 0 || setns(fd, CLONE_NEWNET))
		die("network namespace %s", netns);
	if (fd != own_netns)
		close(fd);
}

static int make_socket(const char *netns, int type)
{
	/* A transaction that is lost must not hang the machine for ever. */
	struct timeval patience = {.tv_sec = 3};
	int made;

	enter(netns);
	made = socket(family == 6 ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC, 0);
	if (made < 0)
		die("socket");
	setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	return made;
}

static void name_server(void)
{
	if (family == 6) {
		struct sockaddr_in6 *name = (struct sockaddr_in6 *)&server_name;

		*name = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
		if (inet_pton(AF_INET6, address, &name->sin6_addr) != 1)
			die("address %s", address);
		name_size = sizeof *name;
	} else {
		struct sockaddr_in *name = (struct sockaddr_in *)&server_name;

		*name = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT)};
		if (inet_pton(AF_INET, address, &name->sin_addr) != 1)
			die("address %s", address);
		name_size = sizeof *name;
	}
}

static void open_datagram(void)
{
	server = make_socket(server_netns, SOCK_DGRAM);
	if (bind(server, (struct sockaddr *)&server_name, name_size))
		die("bind %s", address);
	client = make_socket(client_netns, SOCK_DGRAM);
}

static void open_listener(void)
{
	int on = 1;

	listener = make_socket(server_netns, SOCK_STREAM);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&server_name, name_size) || listen(listener, 16))
		die("listen on %s", address);
}

static void open_connection(void)
{
	int on = 1;

	client = make_socket(client_netns, SOCK_STREAM);
	if (connect(client, (struct sockaddr *)&server_name, name_size))
		die("connect to %s", address);
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (server < 0)
		die("accept");
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* ---- one transaction of each workload ---- */

/* Where a router must say first that a datagram is too large, the first one in each direction is
 * lost. That may happen while warming up, and not again. */
static int forgiven = 4;

static bool receive_datagram(int from, struct sockaddr_storage *name, socklen_t *length)
{
	ssize_t got = recvfrom(from, receive_buffer, sizeof receive_buffer, 0,
			       (struct sockaddr *)name, length);

	if (got == size)
		return true;
	if (got >= 0 || errno != EAGAIN)
		die("receive");
	if (forgiven-- <= 0)
		die("datagrams of %d bytes are lost on the way to the %s (is an MTU too small?)",
		    size, from == server ? "server" : "client");
	return false;
}

static void write_all(int to, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t got = send(to, send_buffer + done, length - done, MSG_NOSIGNAL);

		if (got <= 0)
			die("send");
		done += (size_t)got;
	}
}

static void read_all(int from, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t got = recv(from, receive_buffer, length - done, 0);

		if (got <= 0)
			die("receive");
		done += (size_t)got;
	}
}

static void udp_stream(void)
{
	CLIENT_ACTS;
	if (sendto(client, send_buffer, (size_t)size, 0, (struct sockaddr *)&server_name,
		   name_size) != size)
		die("sendto %s", address);
	SERVER_ACTS;
	receive_datagram(server, NULL, NULL);
}

static void udp_rr(void)
{
	socklen_t length = sizeof client_name;

	CLIENT_ACTS;
	if (sendto(client, send_buffer, (size_t)size, 0, (struct sockaddr *)&server_name,
		   name_size) != size)
		die("sendto %s", address);
	SERVER_ACTS;
	if (!receive_datagram(server, &client_name, &length))
		return;
	if (sendto(server, send_buffer, (size_t)size, 0, (struct sockaddr *)&client_name, length) !=
	    size)
		die("send back");
	CLIENT_ACTS;
	receive_datagram(client, NULL, NULL);
}

static void tcp_stream(void)
{
	CLIENT_ACTS;
	write_all(client, (size_t)size);
	SERVER_ACTS;
	read_all(server, (size_t)size);
}

static void tcp_rr(void)
{
	CLIENT_ACTS;
	write_all(client, (size_t)size);
	SERVER_ACTS;
	read_all(server, (size_t)size);
	write_all(server, (size_t)size);
	CLIENT_ACTS;
	read_all(client, (size_t)size);
}

static void tcp_crr(void)
{
	char end;

	open_connection();
	tcp_rr();
	close(client);
	if (recv(server, &end, 1, 0) != 0)
		die("wait for the end of the connection");
	close(server);
}

static void run_command(void)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (child == 0) {
		enter(client_netns);
		execvp(command[0], command);
		printf("NSPROF failed %s: %s\n", command[0], strerror(errno));
		_exit(127);
	}
	if (waitpid(child, &status, 0) != child)
		die("wait for %s", command[0]);
	if (status) {
		printf("NSPROF status %d\n",
		       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		exit(1);
	}
}

/* ---- measuring ---- */

static void print_counters(const char *when)
{
	char line[512], name[64];
	FILE *file;

	if (!count_netns || !device)
		return;
	enter(count_netns);
	file = fopen("/proc/thread-self/net/dev", "re");
	while (file && fgets(line, sizeof line, file)) {
		unsigned long long field[10];

		if (sscanf(line, " %63[^:]: %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu",
			   name, &field[0], &field[1], &field[2], &field[3], &field[4], &field[5],
			   &field[6], &field[7], &field[8], &field[9]) == 11 &&
		    !strcmp(name, device))
			printf("NSPROF counters %s %s rx_packets %llu tx_packets %llu rx_bytes "
			       "%llu tx_bytes %llu\n",
			       when, device, field[1], field[9], field[0], field[8]);
	}
	if (file)
		fclose(file);
}

/* Is this network as lucky as the luckiest? The clock tells: it counts instructions. */
static bool worth_measuring(void (*transaction)(void))
{
	uint64_t quickest = UINT64_MAX, best = UINT64_MAX, ticks_seen;
	FILE *file;

	for (int p = 0; p < PROBES; p++) {
		uint64_t begin = now_ticks();

		for (int i = 0; i < packets; i++)
			transaction();
		begin = now_ticks() - begin;
		quickest = begin < quickest ? begin : quickest;
	}
	file = fopen(SEEN, "a+e");
	if (!file)
		die("%s", SEEN);
	rewind(file);
	while (fscanf(file, "%" SCNu64, &ticks_seen) == 1)
		best = ticks_seen < best ? ticks_seen : best;
	fprintf(file, "%" PRIu64 "\n", quickest);
	fclose(file);
	printf("NSPROF placement %" PRIu64 "\n", quickest);
	/* TCP reckons with the clock: its samples differ by themselves, by less than a thousandth.
	 */
	if (best != UINT64_MAX && !strncmp(workload, "tcp-", 4))
		best += best / 1000;
	return (attempt >= tries && quickest <= best) || attempt >= 2 * tries;
}

/* What is still to be done in the background since the machine started (keys, statistics, freed
 * memory) shall not fall into the samples. Idle time costs nothing: it is skipped. */
static void settle(void)
{
	struct timespec rest = {.tv_sec = 2};

	nanosleep(&rest, NULL);
}

static void measure(void (*transaction)(void))
{
	if (transaction != run_command) {
		for (int i = 0; i < warmup; i++)
			transaction();
		forgiven = 0;
		if (!worth_measuring(transaction)) {
			fflush(stdout);
			exit(TRY_ANOTHER);
		}
	}
	MARK(2, 0);
	settle();
	for (int i = 0; i < warmup; i++)
		transaction();
	print_counters("before");
	fflush(stdout);
	/* Printing, and the interrupts of the serial line, are over before the first sample. */
	for (int i = 0; i < 2 * packets && i < warmup; i++)
		transaction();
	for (int s = 0; s < samples; s++) {
		uint64_t begin = now_ticks();

		MARK(1, 1);
		for (int i = 0; i < packets; i++)
			transaction();
		MARK(0, 1);
		ticks[s] = now_ticks() - begin;
	}
	print_counters("after");
	printf("NSPROF extra %d\n", 2 * packets < warmup ? 2 * packets : warmup);
	for (int s = 0; s < samples; s++)
		printf("NSPROF ticks %d %" PRIu64 "\n", s, ticks[s]);
}

/* Known answers: 2,001 instructions between two marks, and 32 KiB that the kernel reads from here.
 */
static void self_test(void)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) || fcntl(ends[1], F_SETPIPE_SZ, 1 << 16) < 0)
		die("pipe");
	for (int s = 0; s < samples; s++) {
		__asm__ volatile("movl $1000, %%ecx\n" MARK_BYTES(
				     1, 2) "1: decl %%ecx\njnz 1b\nnop\n" MARK_BYTES(0, 2)
				 :
				 :
				 : "ecx", "cc");
		MARK(1, 3);
		if (write(ends[1], send_buffer, 32768) != 32768)
			die("write to a pipe");
		MARK(0, 3);
		if (read(ends[0], receive_buffer, 32768) != 32768)
			die("read from a pipe");
	}
}

/* ---- the kernel's random numbers: hash seeds that follow from ours ---- */

static int seed_kernel(const char *seed)
{
	struct {
		struct rand_pool_info head;
		char bytes[64];
	} pool = {.head = {.entropy_count = 8 * 64, .buf_size = 64}};
	int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);

	memset(pool.bytes, 0, sizeof pool.bytes);
	snprintf(pool.bytes, sizeof pool.bytes, "nsprof %s", seed);
	if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) || ioctl(fd, RNDRESEEDCRNG))
		die("seeding the kernel's random numbers");
	return 0;
}

/* ---- bulk output: bytes to QEMU's debug port, which needs no driver ---- */

static int bulk(void)
{
	static char buffer[1 << 16];
	ssize_t got;

	if (ioperm(0xe9, 1, 1))
		die("access to the debug port");
	while ((got = read(0, buffer, sizeof buffer)) > 0) {
		const char *at = buffer;
		size_t left = (size_t)got;

		__asm__ volatile("rep outsb"
				 : "+S"(at), "+c"(left)
				 : "d"((uint16_t)0xe9)
				 : "memory");
	}
	return got < 0;
}

static bool take(const char *word, const char *name, const char **text, int *number)
{
	size_t length = strlen(name);

	if (strncmp(word, name, length) || word[length] != '=')
		return false;
	if (text)
		*text = word + length + 1;
	if (number)
		*number = atoi(word + length + 1);
	return true;
}

static void take_arguments(char **words)
{
	for (; *words; words++) {
		if (!strcmp(*words, "--")) {
			command = words + 1;
			return;
		}
		if (take(*words, "workload", &workload, NULL) ||
		    take(*words, "client", &client_netns, NULL) ||
		    take(*words, "server", &server_netns, NULL) ||
		    take(*words, "address", &address, NULL) ||
		    take(*words, "count", &count_netns, NULL) ||
		    take(*words, "device", &device, NULL) ||
		    take(*words, "family", NULL, &family) || take(*words, "size", NULL, &size) ||
		    take(*words, "packets", NULL, &packets) ||
		    take(*words, "samples", NULL, &samples) ||
		    take(*words, "warmup", NULL, &warmup) ||
		    take(*words, "attempt", NULL, &attempt) || take(*words, "tries", NULL, &tries))
			continue;
		errno = EINVAL;
		die("argument %s", *words);
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "bulk"))
		return bulk();
	if (argc == 3 && !strcmp(argv[1], "seed"))
		return seed_kernel(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "netkit")) {
		if (make_netkit(argv[2], argv[3], argv[4]))
			die("making netkit pair %s (it wants CONFIG_NETKIT, Linux 6.7)", argv[2]);
		return 0;
	}
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	take_arguments(argv + 1);
	if (samples > SAMPLES_MAX || size < 1 || size > BUFFER_SIZE || packets < 1) {
		errno = EINVAL;
		die("arguments");
	}
	own_netns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	memset(send_buffer, 'n', sizeof send_buffer);
	memset(receive_buffer, 'n', sizeof receive_buffer);
	memset(ticks, 1, sizeof ticks);
	mlockall(MCL_CURRENT | MCL_FUTURE);
	if (!strcmp(workload, "self-test")) {
		MARK(2, 0);
		self_test();
		fflush(stdout);
		return 0;
	}
	if (!strcmp(workload, "command")) {
		if (!command || !*command)
			die("no command");
		warmup = 1;
		measure(run_command);
		fflush(stdout);
		MARK(3, 0);
		return 0;
	}
	if (!address)
		die("no address");
	name_server();
	if (!strncmp(workload, "tcp-", 4))
		open_listener();
	if (!strcmp(workload, "udp-stream") || !strcmp(workload, "udp-rr"))
		open_datagram();
	else if (strcmp(workload, "tcp-crr"))
		open_connection();
	enter(client_netns);
	if (!strcmp(workload, "udp-stream"))
		measure(udp_stream);
	else if (!strcmp(workload, "udp-rr"))
		measure(udp_rr);
	else if (!strcmp(workload, "tcp-stream"))
		measure(tcp_stream);
	else if (!strcmp(workload, "tcp-rr"))
		measure(tcp_rr);
	else if (!strcmp(workload, "tcp-crr"))
		measure(tcp_crr);
	else
		die("workload %s", workload);
	fflush(stdout);
	MARK(3, 0);
	return 0;
}
