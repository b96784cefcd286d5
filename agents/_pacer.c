/* A native sender thread: datagrams of a buffer, each sent at its own absolute CLOCK_MONOTONIC time.
 *
 * One thread per Pacer (_pacer_thread.h), made once and reused for every start(). It never takes the interpreter's
 * lock, so neither Python code nor garbage collection can delay a datagram. The lock order is: interpreter, then
 * sender.lock; whoever waits for the thread first gives up the interpreter.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>

#include "_pacer_thread.h"

#define MAX_DATAGRAM_BYTES 65507 /* UDP over IPv4 */

typedef struct {
    PyObject_HEAD
    Sender sender;
    bool open;
    bool holds_payload;
    Py_buffer payload; /* what the thread's messages point into */
} Pacer;

static int require_open(Pacer *pacer)
{
    if (pacer->open)
        return 0;
    PyErr_SetString(PyExc_ValueError, "this pacer is closed");
    return -1;
}

static void shut_down(Pacer *pacer)
{
    if (!pacer->open)
        return;
    pacer->open = false;
    Py_BEGIN_ALLOW_THREADS
    end_thread(&pacer->sender);
    Py_END_ALLOW_THREADS
    free_work(&pacer->sender);
    if (pacer->holds_payload)
        PyBuffer_Release(&pacer->payload);
    pacer->holds_payload = false;
    close(pacer->sender.done_fd);
    close(pacer->sender.fd);
}

static PyObject *pacer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"fd", "priority", "most_catch_up_ns", NULL};
    Pacer *pacer;
    Sender *sender;
    long long most_catch_up_ns = -1;
    int fd, priority, error;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii|L:Pacer", keywords, &fd, &priority, &most_catch_up_ns))
        return NULL;
    if (priority < 0 || priority > sched_get_priority_max(SCHED_FIFO))
        return PyErr_Format(PyExc_ValueError, "priority is %d, it must be 0 (none) to %d", priority,
                            sched_get_priority_max(SCHED_FIFO));
    pacer = (Pacer *)type->tp_alloc(type, 0);
    if (pacer == NULL)
        return NULL;
    sender = &pacer->sender;
    sender->most_catch_up_ns = most_catch_up_ns;
    make_locks(sender);
    sender->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    sender->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    error = sender->fd < 0 ? EBADF : sender->done_fd < 0 ? EMFILE : make_thread(sender, priority);
    if (error == 0) {
        pacer->open = true;
        return (PyObject *)pacer;
    }
    if (sender->fd >= 0)
        close(sender->fd);
    if (sender->done_fd >= 0)
        close(sender->done_fd);
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(pacer);
    return NULL;
}

static void pacer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Pacer *pacer = (Pacer *)self;

    shut_down(pacer);
    free(pacer->sender.lateness_ns);
    /* Not in close(): another thread may still be on its way out of cancel(). */
    pthread_cond_destroy(&pacer->sender.idle);
    pthread_cond_destroy(&pacer->sender.wake);
    pthread_mutex_destroy(&pacer->sender.lock);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Take a one-dimensional contiguous array of native integers, `codes` being the struct codes that have `item` bytes. */
static int take_integers(PyObject *object, Py_buffer *view, const char *codes, Py_ssize_t item, const char *name)
{
    const char *format;

    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError))
            PyErr_Format(PyExc_ValueError, "%s must be contiguous", name);
        return -1;
    }
    format = view->format == NULL ? "B" : view->format;
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    if (view->ndim == 1 && view->itemsize == item && strlen(format) == 1 && strchr(codes, *format) != NULL)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be a one-dimensional array of int%zd", name, 8 * item);
    PyBuffer_Release(view);
    return -1;
}

/* Where the copies of each datagram go; none: to the address that the socket is connected to. */
typedef struct {
    Py_ssize_t count;
    struct sockaddr_in *addresses;
} Destinations;

/* Take a sequence of (IPv4 address, port); the caller frees `addresses`. */
static int take_destinations(PyObject *object, Destinations *taken)
{
    PyObject *sequence = PySequence_Fast(object, "destinations must be a sequence");

    if (sequence == NULL)
        return -1;
    taken->count = PySequence_Fast_GET_SIZE(sequence);
    taken->addresses = calloc((size_t)taken->count + 1, sizeof(*taken->addresses));
    if (taken->addresses == NULL) {
        Py_DECREF(sequence);
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < taken->count; i++) {
        PyObject *destination = PySequence_Fast_GET_ITEM(sequence, i);
        const char *address;
        int port;

        taken->addresses[i].sin_family = AF_INET;
        if (!PyTuple_Check(destination) || !PyArg_ParseTuple(destination, "si", &address, &port) || port < 1 || port > 65535 ||
            inet_pton(AF_INET, address, &taken->addresses[i].sin_addr) != 1) {
            PyErr_Format(PyExc_ValueError, "destinations[%zd] is not (IPv4 address, port)", i);
            free(taken->addresses);
            Py_DECREF(sequence);
            return -1;
        }
        taken->addresses[i].sin_port = htons((uint16_t)port);
    }
    Py_DECREF(sequence);
    return 0;
}

/* How many copies of each datagram are sent. */
static Py_ssize_t copies(const Destinations *destinations)
{
    return destinations->count > 0 ? destinations->count : 1;
}

/* Check the arguments of start(). */
static int check_work(const Py_buffer *payload, Py_ssize_t slot_bytes, const Py_buffer *lengths, const Py_buffer *times,
                      const Destinations *destinations)
{
    const int32_t *length = lengths->buf;
    const int64_t *time = times->buf;
    Py_ssize_t count = lengths->shape[0];
    Py_ssize_t sends = times->shape[0];

    if (sends / copies(destinations) != count || sends % copies(destinations) != 0) {
        PyErr_Format(PyExc_ValueError, "lengths has %zd entries and times_ns %zd: they must be alike, for each of %zd "
                     "copies", count, sends, copies(destinations));
        return -1;
    }
    if (slot_bytes < 1) {
        PyErr_Format(PyExc_ValueError, "slot_bytes is %zd, it must be positive", slot_bytes);
        return -1;
    }
    if (count > payload->len / slot_bytes) {
        PyErr_Format(PyExc_ValueError, "the buffer has %zd bytes, %zd slots of %zd bytes do not fit", payload->len,
                     count, slot_bytes);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (length[i] < 1 || length[i] > slot_bytes || length[i] > MAX_DATAGRAM_BYTES) {
            PyErr_Format(PyExc_ValueError, "lengths[%zd] is %d, it must be 1 to the lesser of slot_bytes and %d", i,
                         (int)length[i], MAX_DATAGRAM_BYTES);
            return -1;
        }
        if (time[i] < 0 || (i > 0 && time[i] < time[i - 1])) {
            PyErr_Format(PyExc_ValueError, "times_ns[%zd] is negative or before the one ahead of it", i);
            return -1;
        }
    }
    return 0;
}

/* Build the messages over the payload; the arguments have been checked and the thread is idle. */
static int prepare_work(Pacer *pacer, Py_ssize_t slot_bytes, const Py_buffer *lengths, const Py_buffer *times,
                        Destinations *destinations)
{
    Sender *sender = &pacer->sender;
    const int32_t *length = lengths->buf;
    size_t count = (size_t)times->shape[0];
    size_t each = (size_t)copies(destinations);
    size_t entries = count > 0 ? count : 1;
    uint64_t drained;

    free(sender->lateness_ns);
    sender->lateness_ns = calloc(entries, sizeof(*sender->lateness_ns));
    sender->sent = 0;
    sender->messages = calloc(entries, sizeof(*sender->messages));
    sender->vectors = calloc(entries, sizeof(*sender->vectors));
    sender->due_ns = calloc(entries, sizeof(*sender->due_ns));
    if (sender->lateness_ns == NULL || sender->messages == NULL || sender->vectors == NULL || sender->due_ns == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(sender->due_ns, times->buf, count * sizeof(*sender->due_ns));
    for (size_t i = 0; i < count; i++) {
        sender->vectors[i].iov_base = (char *)pacer->payload.buf + i / each * (size_t)slot_bytes;
        sender->vectors[i].iov_len = (size_t)length[i / each];
        sender->messages[i].msg_hdr.msg_iov = &sender->vectors[i];
        sender->messages[i].msg_hdr.msg_iovlen = 1;
        if (destinations->count > 0) {
            sender->messages[i].msg_hdr.msg_name = &destinations->addresses[i % each];
            sender->messages[i].msg_hdr.msg_namelen = sizeof(destinations->addresses[0]);
        }
    }
    sender->destinations = destinations->addresses;
    destinations->addresses = NULL;
    sender->count = count;
    /* EAGAIN: somebody has read the last done already. */
    if (read(sender->done_fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static bool is_running(Pacer *pacer)
{
    bool running;

    pthread_mutex_lock(&pacer->sender.lock);
    running = pacer->sender.running;
    pthread_mutex_unlock(&pacer->sender.lock);
    return running;
}

/* start() with its arguments as buffers. Takes over `payload` and the destinations if it succeeds. */
static int start_sending(Pacer *pacer, Py_buffer *payload, Py_ssize_t slot_bytes, const Py_buffer *lengths,
                         const Py_buffer *times, Destinations *destinations)
{
    Py_buffer earlier = pacer->payload;
    bool held = pacer->holds_payload;
    int result;

    if (check_work(payload, slot_bytes, lengths, times, destinations) < 0 || require_open(pacer) < 0)
        return -1;
    if (is_running(pacer)) {
        PyErr_SetString(PyExc_RuntimeError, "this pacer is still sending: wait for done_fd, or cancel");
        return -1;
    }
    /* Nothing from here to the hand-over runs Python code, so nobody else can start or close in between. */
    free_work(&pacer->sender);
    pacer->payload = *payload;
    pacer->holds_payload = true;
    result = prepare_work(pacer, slot_bytes, lengths, times, destinations);
    if (result == 0) {
        begin_sending(&pacer->sender);
    } else {
        free_work(&pacer->sender);
        pacer->holds_payload = false;
    }
    if (held)
        PyBuffer_Release(&earlier);
    return result;
}

static PyObject *pacer_start(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"buffer", "slot_bytes", "lengths", "times_ns", "destinations", NULL};
    PyObject *buffer, *lengths_object, *times_object, *destinations_object = NULL;
    Destinations destinations = {0, NULL};
    Py_buffer payload, lengths, times;
    Py_ssize_t slot_bytes;
    int result;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnOO|O:start", keywords, &buffer, &slot_bytes, &lengths_object,
                                     &times_object, &destinations_object))
        return NULL;
    if (destinations_object != NULL && take_destinations(destinations_object, &destinations) < 0)
        return NULL;
    if (PyObject_GetBuffer(buffer, &payload, PyBUF_SIMPLE) < 0) {
        free(destinations.addresses);
        return NULL;
    }
    if (take_integers(lengths_object, &lengths, "il", sizeof(int32_t), "lengths") < 0) {
        PyBuffer_Release(&payload);
        free(destinations.addresses);
        return NULL;
    }
    if (take_integers(times_object, &times, "lq", sizeof(int64_t), "times_ns") < 0) {
        PyBuffer_Release(&lengths);
        PyBuffer_Release(&payload);
        free(destinations.addresses);
        return NULL;
    }
    result = start_sending((Pacer *)self, &payload, slot_bytes, &lengths, &times, &destinations);
    free(destinations.addresses);
    PyBuffer_Release(&times);
    PyBuffer_Release(&lengths);
    if (result < 0) {
        PyBuffer_Release(&payload);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *pacer_cancel(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Pacer *pacer = (Pacer *)self;

    if (require_open(pacer) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    stop_sending(&pacer->sender);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *pacer_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    shut_down((Pacer *)self);
    Py_RETURN_NONE;
}

/* The thread's counters: what `which` of pacer_get_counter is. */
typedef enum { SENT, RETRIES, ERROR_NUMBER } Counter;

static PyObject *pacer_get_counter(PyObject *self, void *which)
{
    Pacer *pacer = (Pacer *)self;
    unsigned long long value;

    if (require_open(pacer) < 0)
        return NULL;
    pthread_mutex_lock(&pacer->sender.lock);
    switch ((Counter)(uintptr_t)which) {
    case SENT:
        value = pacer->sender.sent;
        break;
    case RETRIES:
        value = pacer->sender.retries;
        break;
    default:
        value = (unsigned long long)pacer->sender.error;
        break;
    }
    pthread_mutex_unlock(&pacer->sender.lock);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *pacer_lateness_ns(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Pacer *pacer = (Pacer *)self;
    PyObject *bytes, *view, *cast;
    size_t sent;

    if (require_open(pacer) < 0)
        return NULL;
    pthread_mutex_lock(&pacer->sender.lock);
    sent = pacer->sender.sent;
    pthread_mutex_unlock(&pacer->sender.lock);
    /* The thread never changes an entry below `sent`. */
    bytes = PyBytes_FromStringAndSize((const char *)pacer->sender.lateness_ns, (Py_ssize_t)(sent * sizeof(int64_t)));
    if (bytes == NULL)
        return NULL;
    view = PyMemoryView_FromObject(bytes);
    Py_DECREF(bytes);
    if (view == NULL)
        return NULL;
    cast = PyObject_CallMethod(view, "cast", "s", "q");
    Py_DECREF(view);
    return cast;
}

static PyObject *pacer_get_running(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;

    return PyBool_FromLong(pacer->open && is_running(pacer));
}

static PyObject *pacer_get_done_fd(PyObject *self, void *Py_UNUSED(closure))
{
    Pacer *pacer = (Pacer *)self;

    if (require_open(pacer) < 0)
        return NULL;
    return PyLong_FromLong(pacer->sender.done_fd);
}

static PyObject *pacer_get_realtime(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((Pacer *)self)->sender.realtime);
}

static PyMethodDef pacer_methods[] = {
    {"start", (PyCFunction)(void (*)(void))pacer_start, METH_VARARGS | METH_KEYWORDS,
     "start(buffer, slot_bytes, lengths, times_ns, destinations=()): send datagram i at times_ns[i]; returns at once."},
    {"cancel", pacer_cancel, METH_NOARGS, "Send no more; returns when the thread is idle."},
    {"close", pacer_close, METH_NOARGS, "Cancel, end the thread, release everything. Safe to call twice."},
    {"lateness_ns", pacer_lateness_ns, METH_NOARGS, "Send call minus due time of each datagram sent, in nanoseconds."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pacer_getset[] = {
    {"running", pacer_get_running, NULL, "Whether datagrams remain to be sent.", NULL},
    {"sent", pacer_get_counter, NULL, "Datagrams of the last start() that the kernel has taken.", (void *)SENT},
    {"retries", pacer_get_counter, NULL, "Send calls of the last start() that were refused for now.", (void *)RETRIES},
    {"error", pacer_get_counter, NULL, "Error number that ended the last start() early, or 0.", (void *)ERROR_NUMBER},
    {"done_fd", pacer_get_done_fd, NULL, "File descriptor that is readable once nothing remains to be sent.", NULL},
    {"realtime", pacer_get_realtime, NULL, "Whether the thread runs under SCHED_FIFO.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pacer_slots[] = {
    {Py_tp_doc, "Pacer(fd, priority): sends datagrams on a connected socket, each at its time, from a native thread."},
    {Py_tp_new, pacer_new},
    {Py_tp_dealloc, pacer_dealloc},
    {Py_tp_methods, pacer_methods},
    {Py_tp_getset, pacer_getset},
    {0, NULL},
};

static PyType_Spec pacer_spec = {
    .name = "agents._pacer.Pacer",
    .basicsize = sizeof(Pacer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = pacer_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &pacer_spec, NULL);
    int result;

    if (type == NULL)
        return -1;
    result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "agents._pacer",
    .m_doc = "A native sender thread: datagrams, each at its own time.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__pacer(void)
{
    return PyModuleDef_Init(&module_definition);
}
