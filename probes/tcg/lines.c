/* Cache lines: which ones a sample touches (footprint), and which of them caches of a given size
 * would miss.
 *
 * Caches are set-associative with true LRU, 64-byte lines, indexed and tagged by physical address,
 * write-allocate; L2 holds data and text. No prefetch, no speculation, no page walks, no other CPU.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "count.h"

#define LINE_SHIFT 6
#define PAGE_SHIFT 12
#define PAGE_MASK (((uint64_t)1 << PAGE_SHIFT) - 1)

struct cache {
	uint32_t ways, sets;
	uint64_t *tags; /* of each set, most recently used first; 0 is empty */
};

struct line {
	uint64_t address, physical, first_access, first_instruction;
	uint32_t loads, stores, node;
	bool text;
	struct line *next;
};

/* A function touched a line. */
struct toucher {
	uint64_t line;
	int function;
	bool text;
	struct toucher *next;
};

#define LINE_BITS 12
bool lines_footprint, lines_caches;
static struct cache l1d, l1i, l2;
static struct line *lines[1 << LINE_BITS];
static struct toucher *touchers[1 << LINE_BITS];

static struct {
	uint64_t page, physical;
} pages[1 << 10];

/* ---- caches ---- */

bool lines_cache(const char *name, const char *geometry)
{
	struct cache *cache = !strcmp(name, "l1d")   ? &l1d
			      : !strcmp(name, "l1i") ? &l1i
			      : !strcmp(name, "l2")  ? &l2
						     : NULL;
	unsigned kib, ways;

	if (!cache || sscanf(geometry, "%u:%u", &kib, &ways) != 2 || !ways ||
	    kib * 1024 / 64 / ways == 0)
		return false;
	cache->ways = ways;
	cache->sets = kib * 1024 / 64 / ways;
	cache->tags = need_memory(calloc((size_t)cache->sets * ways, sizeof *cache->tags));
	lines_caches = true;
	return true;
}

static bool hit(struct cache *cache, uint64_t line)
{
	uint64_t *set, tag = line + 1;
	uint32_t way = 0;

	if (!cache->ways)
		return true;
	set = cache->tags + (size_t)(line % cache->sets) * cache->ways;
	while (way < cache->ways && set[way] != tag)
		way++;
	if (way == 0)
		return true;
	memmove(set + 1, set, (way < cache->ways ? way : cache->ways - 1) * sizeof *set);
	set[0] = tag;
	return way < cache->ways;
}

/* ---- footprint ---- */

static void release(void)
{
	for (size_t i = 0; i < 1u << LINE_BITS; i++) {
		while (lines[i]) {
			struct line *line = lines[i];

			lines[i] = line->next;
			free(line);
		}
		while (touchers[i]) {
			struct toucher *toucher = touchers[i];

			touchers[i] = toucher->next;
			free(toucher);
		}
	}
}

void lines_new_sample(void)
{
	release();
	memset(pages, 0, sizeof pages);
}

static struct line *line_at(uint64_t line, bool text)
{
	struct line **head = &lines[hash64(line, LINE_BITS)], *found;

	for (found = *head; found; found = found->next)
		if (found->address == line << LINE_SHIFT && found->text == text)
			return found;
	found = need_memory(calloc(1, sizeof *found));
	found->address = line << LINE_SHIFT;
	found->text = text;
	found->next = *head;
	*head = found;
	return found;
}

static void touch(uint64_t line, int function, bool text)
{
	struct toucher **head = &touchers[hash64(line ^ (uint64_t)function << 40, LINE_BITS)],
		       *found;

	for (found = *head; found; found = found->next)
		if (found->line == line && found->function == function && found->text == text)
			return;
	found = need_memory(calloc(1, sizeof *found));
	*found = (struct toucher){.line = line, .function = function, .text = text, .next = *head};
	*head = found;
}

struct misses lines_data(struct node *node, uint64_t address, uint64_t physical, unsigned size,
			 bool store, uint64_t instruction)
{
	uint64_t last = (address + size - 1) >> LINE_SHIFT;
	struct misses missed = {0, 0};

	for (uint64_t line = address >> LINE_SHIFT; line <= last; line++) {
		uint64_t at = line == address >> LINE_SHIFT ? physical : (physical + size - 1);

		if (lines_caches && !hit(&l1d, at >> LINE_SHIFT)) {
			missed.l1++;
			missed.l2 += !hit(&l2, at >> LINE_SHIFT);
		}
		if (lines_footprint) {
			struct line *known = line_at(line, false);

			if (!(known->loads | known->stores)) {
				known->physical = at & ~(uint64_t)63;
				known->first_access = address;
				known->first_instruction = instruction;
				known->node = (uint32_t)(node - nodes);
				node->count[DATA_LINES]++;
			}
			*(store ? &known->stores : &known->loads) += 1;
			touch(line, node->function, false);
		}
	}
	node->count[L1D_MISSES] += missed.l1;
	node->count[L2_MISSES] += missed.l2;
	return missed;
}

/* The kernel's text is mapped once and contiguously: its virtual line serves as physical for the
 * caches. The bit keeps it apart from data in L2. */
struct misses lines_text(struct node *node, uint64_t address)
{
	uint64_t line = address >> LINE_SHIFT, tagged = line | (uint64_t)1 << 57;
	struct misses missed = {0, 0};

	if (lines_caches && !hit(&l1i, line)) {
		missed.l1++;
		missed.l2 += !hit(&l2, tagged);
	}
	if (lines_footprint) {
		struct line *known = line_at(line, true);

		if (!known->loads) {
			known->first_access = known->first_instruction = address;
			known->node = (uint32_t)(node - nodes);
			node->count[TEXT_LINES]++;
		}
		known->loads++;
		touch(line, node->function, true);
	}
	node->count[L1I_MISSES] += missed.l1;
	node->count[L2_MISSES] += missed.l2;
	return missed;
}

void lines_write(FILE *out)
{
	for (size_t i = 0; i < 1u << LINE_BITS; i++)
		for (struct line *line = lines[i]; line; line = line->next)
			fprintf(out,
				"L %c %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %u %u %u\n",
				line->text ? 't' : 'd', line->address, line->physical,
				line->first_access, line->first_instruction, line->loads,
				line->stores, line->node);
	for (size_t i = 0; i < 1u << LINE_BITS; i++)
		for (struct toucher *toucher = touchers[i]; toucher; toucher = toucher->next)
			fprintf(out, "T %c %" PRIx64 " %d\n", toucher->text ? 't' : 'd',
				toucher->line << LINE_SHIFT, toucher->function);
}

/* ---- translations ---- */

uint64_t page_lookup(uint64_t address)
{
	size_t at = hash64(address >> PAGE_SHIFT, 10);

	return pages[at].page == address >> PAGE_SHIFT ? pages[at].physical | (address & PAGE_MASK)
						       : 0;
}

void page_remember(uint64_t address, uint64_t physical)
{
	size_t at = hash64(address >> PAGE_SHIFT, 10);

	pages[at].page = address >> PAGE_SHIFT;
	pages[at].physical = physical & ~PAGE_MASK;
}
