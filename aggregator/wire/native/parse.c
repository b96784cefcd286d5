#include "parse.h"

#include "crc32.h"
#include "tag.h"

enum { LAST_REASON = 4 };

enum tb_refusal tb_parse(const uint8_t *datagram, size_t size, const uint8_t *key, struct tb_header *header) {
    if (size < HEADER_BYTES) return TB_BAD_LENGTH;
    if (get16(datagram) != MAGIC) return TB_BAD_MAGIC;
    if (datagram[2] != VERSION) return TB_BAD_VERSION;
    *header = (struct tb_header){
        .kind = datagram[3],
        .flags = datagram[FLAGS_AT],
        .reason = datagram[5],
        .source = datagram[6],
        .contributors = datagram[7],
        .job = get32(datagram + 8),
        .epoch = get32(datagram + EPOCH_AT),
        .round = get32(datagram + ROUND_AT),
        .shard = get16(datagram + 20),
        .value_count = get16(datagram + 22),
        .chunk = get32(datagram + 24),
        .number = get32(datagram + NUMBER_AT),
        .number_format = datagram[36],
        .bitmap = get64(datagram + BITMAP_AT),
        .stream = get32(datagram + STREAM_AT),
    };
    if (header->kind < CONTRIBUTION || header->kind > FETCH || header->reason > LAST_REASON) return TB_BAD_KIND;
    if (size != HEADER_BYTES + VALUE_BYTES * header->value_count) return TB_BAD_LENGTH;
    uint32_t crc = tb_datagram_crc32(datagram, size);
    if (crc != get32(datagram + CHECKSUM_AT)) return TB_BAD_CHECKSUM;
    return key && tb_tag(key, datagram, size) != get64(datagram + TB_TAG_AT) ? TB_BAD_TAG : TB_ADMITTED;
}
