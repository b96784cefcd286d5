/* The network namespace that this process owns, and the interfaces in it. */
#ifndef DELAYLINE_INTERFACES_H
#define DELAYLINE_INTERFACES_H

#include <stdbool.h>
#include <stdint.h>

/* The group that the links' interfaces are put into by whoever makes them. */
#define INTERFACE_GROUP 1

/* Move this process into a new network namespace, where interfaces have no IPv6. It ends with the process. */
bool interfaces_own_namespace(void);

/* Frames that never reached the packet socket, because the kernel's backlog of the processor was full. Call `tell` for
 * each interface of this namespace. */
void interfaces_each_drops(void (*tell)(void *context, const char *interface, uint64_t drops), void *context);

/* Remove all interfaces of the group, and with them their other ends. */
bool interfaces_remove(void);

#endif
