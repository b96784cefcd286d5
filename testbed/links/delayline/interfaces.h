/* The network namespace that this process owns, and the interfaces in it. */
#ifndef DELAYLINE_INTERFACES_H
#define DELAYLINE_INTERFACES_H

#include <stdbool.h>

/* The group that the links' interfaces are put into by whoever makes them. */
#define INTERFACE_GROUP 1

/* Move this process into a new network namespace, where interfaces have no IPv6. It ends with the process. */
bool interfaces_own_namespace(void);

/* Remove all interfaces of the group, and with them their other ends. */
bool interfaces_remove(void);

#endif
