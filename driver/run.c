/*-------------------------------------------------------------------------
 * run.c
 *		The end of a run: any thread can bring it about.
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <string.h>

#include "duet.h"

/*
 * End the run now, for this reason.  The first failure is the one that is
 * reported; it overrides a signal, and a signal overrides the time.
 */
void
run_end(Run *run, Ending ending, const char *format, ...)
{
	int64_t		now_ns = run_now(run);
	va_list		arguments;

	pthread_mutex_lock(&run->lock);
	if (ending > run->ending)
	{
		run->ending = ending;
		va_start(arguments, format);
		vsnprintf(run->failure, sizeof(run->failure), format, arguments);
		va_end(arguments);
		/* libpq's messages have line breaks */
		for (char *at = run->failure; *at; at++)
			if (*at == '\n' || *at == '\r' || *at == '\t')
				*at = ' ';
		for (size_t n = strlen(run->failure); n > 0 && run->failure[n - 1] == ' '; n--)
			run->failure[n - 1] = '\0';
	}
	if (now_ns < atomic_load(&run->end_ns))
		atomic_store(&run->end_ns, now_ns);
	pthread_mutex_unlock(&run->lock);
}
