/* The guest's kallsyms: which function an address belongs to, and which symbols enter the kernel by
 * interrupt. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "count.h"

struct symbol *symbols;
int symbol_count;
static int fork_return = -1, fork_return_asm = -1;
static struct {
	uint64_t low, high;
} stubs[2]; /* irq_entries_start, spurious_entries_start: one short stub a vector */
static int stub_ranges;

static bool starts(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* Of several names for one address the function's own is wanted, not a padding or section mark. */
static int preference(const char *name)
{
	return !starts(name, "__pfx_") && !strstr(name, "_text_start") &&
	       !strstr(name, "_text_end");
}

static int by_address(const void *left, const void *right)
{
	const struct symbol *a = left, *b = right;

	if (a->address != b->address)
		return a->address < b->address ? -1 : 1;
	return strcmp(a->name, b->name);
}

static int by_name(const void *left, const void *right)
{
	return strcmp(symbols[*(const int *)left].name, symbols[*(const int *)right].name);
}

static bool read_symbols(const char *path)
{
	char line[1024], name[512], type;
	uint64_t address;
	int room = 0;
	FILE *file = fopen(path, "r");

	if (!file)
		return false;
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%" SCNx64 " %c %511s", &address, &type, name) != 3)
			continue;
		if (!strchr("tTwW", type) || !(address >> 63))
			continue;
		if (symbol_count + 2 >= room) {
			room = room ? room * 2 : 1 << 17;
			symbols = need_memory(realloc(symbols, (size_t)room * sizeof *symbols));
		}
		symbols[symbol_count++] = (struct symbol){.address = address, .name = strdup(name)};
	}
	fclose(file);
	return symbol_count > 0;
}

static void drop_aliases(void)
{
	int kept = 0;

	qsort(symbols, (size_t)symbol_count, sizeof *symbols, by_address);
	for (int i = 0; i < symbol_count; i++) {
		struct symbol *last = kept ? &symbols[kept - 1] : NULL;

		if (!last || last->address != symbols[i].address)
			symbols[kept++] = symbols[i];
		else if (preference(last->name) < preference(symbols[i].name))
			*last = symbols[i];
	}
	symbol_count = kept;
}

/* Static functions may share a name: the nearest one is meant. */
static int nearest(const int *sorted, const char *name, int from)
{
	int low = 0, high = symbol_count, found = from;
	uint64_t best = UINT64_MAX, here = symbols[from].address;

	while (low < high) {
		int middle = (low + high) / 2;

		if (strcmp(symbols[sorted[middle]].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < symbol_count && !strcmp(symbols[sorted[low]].name, name); low++) {
		uint64_t there = symbols[sorted[low]].address;
		uint64_t distance = there > here ? there - here : here - there;

		if (distance < best) {
			best = distance;
			found = sorted[low];
		}
	}
	return found;
}

/* The name of the function that a symbol is a part of, NULL when it stands for itself. */
static const char *whole(const char *name, char *buffer, size_t size)
{
	const char *cold = strstr(name, ".cold");

	if (cold) {
		snprintf(buffer, size, "%.*s", (int)(cold - name), name);
		return buffer;
	}
	if (starts(name, "entry_SYSCALL_64_") || starts(name, "entry_SYSRETQ_") ||
	    !strcmp(name, "syscall_return_via_sysret"))
		return "entry_SYSCALL_64";
	return NULL;
}

static void classify(int index, const int *sorted)
{
	struct symbol *symbol = &symbols[index];
	char buffer[512];
	const char *name = symbol->name, *base = whole(name, buffer, sizeof buffer);

	symbol->function = base ? nearest(sorted, base, index) : index;
	if (!strncmp(name, "__netif_receive_skb_one_core", 28) && (!name[28] || name[28] == '.'))
		symbol->hop = RECEIVES;
	else if (!strcmp(name, "dev_hard_start_xmit"))
		symbol->hop = TRANSMITS;
	symbol->interrupt_entry = starts(name, "asm_exc_") || starts(name, "asm_sysvec_");
	if (!strcmp(name, "ret_from_fork"))
		fork_return = index;
	if (!strcmp(name, "ret_from_fork_asm"))
		fork_return_asm = index;
	if ((!strcmp(name, "irq_entries_start") || !strcmp(name, "spurious_entries_start")) &&
	    stub_ranges < 2 && index + 1 < symbol_count) {
		stubs[stub_ranges].low = symbol->address;
		stubs[stub_ranges++].high = symbols[index + 1].address;
	}
}

bool symbols_load(const char *path)
{
	int *sorted;

	if (!read_symbols(path))
		return false;
	drop_aliases();
	sorted = need_memory(malloc((size_t)symbol_count * sizeof *sorted));
	for (int i = 0; i < symbol_count; i++)
		sorted[i] = i;
	qsort(sorted, (size_t)symbol_count, sizeof *sorted, by_name);
	for (int i = 0; i < symbol_count; i++)
		classify(i, sorted);
	free(sorted);
	symbols[symbol_count] = (struct symbol){.name = "[unknown]", .function = symbol_count};
	symbols[symbol_count + 1] = (struct symbol){.name = "[user]", .function = symbol_count + 1};
	return true;
}

int symbol_at(uint64_t address)
{
	int low = 0, high = symbol_count;

	while (low < high) {
		int middle = (low + high) / 2;

		if (symbols[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? low - 1 : symbol_count;
}

bool is_fork_return(int function)
{
	return function >= 0 && (function == fork_return || function == fork_return_asm);
}

/* The stubs stand 8 bytes apart (16 with IBT, where every second boundary lies within one). */
bool is_irq_stub(uint64_t address, bool *first)
{
	for (int i = 0; i < stub_ranges; i++)
		if (address >= stubs[i].low && address < stubs[i].high) {
			*first = !((address - stubs[i].low) & 7);
			return true;
		}
	return false;
}
