/* Packets by the batch: one system call and one call from Python for many. See batch.py for the Python side. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "packet.h"

#define MOST 64
#define ANCILLARY_BYTES CMSG_SPACE(sizeof(struct in_pktinfo))

/* Rows of datagrams and their records, as two buffers from Python. */
struct batch {
    Py_buffer rows, records;
    size_t stride, count;
};

static void release(struct batch *batch)
{
    PyBuffer_Release(&batch->rows);
    PyBuffer_Release(&batch->records);
}

/* Check that `count` rows from `first` on are there. On failure the buffers are released and an exception is set. */
static bool check(struct batch *batch, Py_ssize_t stride, Py_ssize_t first, Py_ssize_t count)
{
    batch->stride = (size_t)stride;
    batch->count = (size_t)count;
    bool fits = stride >= PACKET_HEADER_BYTES && first >= 0 && count >= 0 && count <= MOST &&
                batch->rows.len / stride >= first + count &&
                batch->records.len / (Py_ssize_t)sizeof(struct packet_record) >= first + count;
    if (!fits) {
        release(batch);
        PyErr_SetString(PyExc_ValueError, "rows or records are too few, or more than a batch");
    }
    return fits;
}

static uint8_t *row(const struct batch *batch, size_t number)
{
    return (uint8_t *)batch->rows.buf + number * batch->stride;
}

static struct packet_record *record(const struct batch *batch, size_t number)
{
    return (struct packet_record *)batch->records.buf + number;
}

static uint32_t destination(struct msghdr *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(part), sizeof info);
            return ntohl(info.ipi_addr.s_addr);
        }
    }
    return 0;
}

PyDoc_STRVAR(receive_doc, "receive(fd, rows, stride, records, count) -> int\n\n"
                          "Receive up to `count` datagrams without waiting, one a row, and parse each into its record.");

static PyObject *receive(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int fd;
    struct batch batch;
    Py_ssize_t stride, count;
    if (!PyArg_ParseTuple(arguments, "iw*nw*n", &fd, &batch.rows, &stride, &batch.records, &count))
        return NULL;
    if (!check(&batch, stride, 0, count))
        return NULL;
    struct mmsghdr messages[MOST];
    struct iovec vectors[MOST];
    struct sockaddr_in sources[MOST];
    union {
        struct cmsghdr header;
        char bytes[ANCILLARY_BYTES];
    } ancillary[MOST];
    memset(messages, 0, batch.count * sizeof messages[0]);
    memset(sources, 0, batch.count * sizeof sources[0]);
    for (size_t i = 0; i < batch.count; i++) {
        vectors[i] = (struct iovec){row(&batch, i), batch.stride};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &sources[i],
                                              .msg_namelen = sizeof sources[i],
                                              .msg_iov = &vectors[i],
                                              .msg_iovlen = 1,
                                              .msg_control = &ancillary[i],
                                              .msg_controllen = sizeof ancillary[i]};
    }
    int received = recvmmsg(fd, messages, (unsigned)batch.count, MSG_DONTWAIT, NULL);
    int error = errno;
    for (int i = 0; i < received; i++) {
        struct packet_record *here = record(&batch, (size_t)i);
        bool whole = !(messages[i].msg_hdr.msg_flags & MSG_TRUNC);
        here->source_address = ntohl(sources[i].sin_addr.s_addr);
        here->destination_address = destination(&messages[i].msg_hdr);
        here->size = messages[i].msg_len;
        here->refusal = (uint8_t)(whole ? packet_parse(row(&batch, (size_t)i), here->size, here) : PACKET_BAD_LENGTH);
    }
    release(&batch);
    if (received >= 0)
        return PyLong_FromLong(received);
    if (error == EAGAIN || error == EINTR)
        return PyLong_FromLong(0);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

PyDoc_STRVAR(seal_doc, "seal(rows, stride, records, first, count)\n\n"
                       "Write header and checksum of each record before the payload in its row; sets the record's size.");

static PyObject *seal(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct batch batch;
    Py_ssize_t stride, first, count;
    if (!PyArg_ParseTuple(arguments, "w*nw*nn", &batch.rows, &stride, &batch.records, &first, &count))
        return NULL;
    if (!check(&batch, stride, first, count))
        return NULL;
    bool fits = true;
    for (size_t i = (size_t)first; i < (size_t)first + batch.count && fits; i++) {
        size_t size = PACKET_HEADER_BYTES + (size_t)PACKET_VALUE_BYTES * record(&batch, i)->value_count;
        fits = size <= batch.stride;
        if (fits)
            record(&batch, i)->size = (uint32_t)packet_seal(row(&batch, i), record(&batch, i));
    }
    release(&batch);
    if (fits)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "value_count is more than a row holds");
    return NULL;
}

PyDoc_STRVAR(send_doc, "send(fd, rows, stride, records, first, count, port) -> int\n\n"
                       "Send the datagrams of rows to their records' destination addresses without waiting.\n"
                       "Returns how many the socket took.");

static PyObject *send_rows(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int fd;
    struct batch batch;
    Py_ssize_t stride, first, count;
    unsigned short port;
    if (!PyArg_ParseTuple(arguments, "iw*nw*nnH", &fd, &batch.rows, &stride, &batch.records, &first, &count, &port))
        return NULL;
    if (!check(&batch, stride, first, count))
        return NULL;
    struct mmsghdr messages[MOST];
    struct iovec vectors[MOST];
    struct sockaddr_in destinations[MOST];
    memset(messages, 0, batch.count * sizeof messages[0]);
    for (size_t i = 0; i < batch.count; i++) {
        const struct packet_record *here = record(&batch, (size_t)first + i);
        size_t size = here->size < batch.stride ? here->size : batch.stride;
        vectors[i] = (struct iovec){row(&batch, (size_t)first + i), size};
        destinations[i] = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(here->destination_address)};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &destinations[i],
                                              .msg_namelen = sizeof destinations[i],
                                              .msg_iov = &vectors[i],
                                              .msg_iovlen = 1};
    }
    int sent = sendmmsg(fd, messages, (unsigned)batch.count, MSG_DONTWAIT);
    int error = errno;
    release(&batch);
    if (sent >= 0)
        return PyLong_FromLong(sent);
    /* The socket or the interface is full for now: not an error, and not sent. */
    if (error == EAGAIN || error == ENOBUFS || error == EINTR)
        return PyLong_FromLong(0);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef methods[] = {{"receive", receive, METH_VARARGS, receive_doc},
                                {"seal", seal, METH_VARARGS, seal_doc},
                                {"send", send_rows, METH_VARARGS, send_doc},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "aggregator.wire._batch", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__batch(void);

PyMODINIT_FUNC PyInit__batch(void)
{
    return PyModule_Create(&module);
}
