-- Wireshark dissector of the packets between hosts and edges (docs/wire-format.md).
-- Install: testbed dissector --install

local HEADER_BYTES = 64
local MAGIC, VERSION = 0x5442, 1
local PORTS = { 47000, 47001, 47003 }
local FLAGS_AT, CHECKSUM_AT = 4, 60
local CONTRIBUTION, RESULT, PROBE, NACK, HEARTBEAT, GONE, FETCH = 1, 2, 3, 4, 5, 6, 7
local TIMEOUT, COLLISION = 2, 3

local kinds = {
    [CONTRIBUTION] = "contribution",
    [RESULT] = "result",
    [PROBE] = "probe",
    [NACK] = "NACK",
    [HEARTBEAT] = "heartbeat",
    [GONE] = "gone",
    [FETCH] = "fetch",
}
local reasons = { [0] = "none", [1] = "complete", [TIMEOUT] = "timeout", [COLLISION] = "collision", [4] = "passthrough" }
local formats = { [0] = "32-bit fixed point", [1] = "f32" }

local tb = Proto("tb", "Testbed Weight Exchange")

local fields = {
    magic = ProtoField.uint16("tb.magic", "Magic", base.HEX),
    version = ProtoField.uint8("tb.version", "Version"),
    kind = ProtoField.uint8("tb.kind", "Kind", base.DEC, kinds),
    flags = ProtoField.uint8("tb.flags", "Flags", base.HEX),
    bypassed = ProtoField.bool("tb.flags.bypassed", "Bypassed", 8, nil, 0x01),
    retransmitted = ProtoField.bool("tb.flags.retransmitted", "Retransmitted", 8, nil, 0x02),
    reason = ProtoField.uint8("tb.reason", "Reason", base.DEC, reasons),
    source = ProtoField.uint8("tb.source", "Source"),
    contributors = ProtoField.uint8("tb.contributors", "Contributors"),
    job = ProtoField.uint32("tb.job", "Job", base.HEX),
    epoch = ProtoField.uint32("tb.epoch", "Epoch"),
    round = ProtoField.uint32("tb.round", "Round"),
    shard = ProtoField.uint16("tb.shard", "Shard"),
    value_count = ProtoField.uint16("tb.value_count", "Value count"),
    chunk = ProtoField.uint32("tb.chunk", "Chunk"),
    number = ProtoField.uint32("tb.number", "Number"),
    trailing_edge = ProtoField.uint32("tb.trailing_edge", "Trailing edge"),
    number_format = ProtoField.uint8("tb.number_format", "Number format", base.DEC, formats),
    bitmap = ProtoField.uint64("tb.bitmap", "Bitmap", base.HEX),
    tag = ProtoField.uint64("tb.tag", "Tag", base.HEX),
    stream = ProtoField.uint32("tb.stream", "Stream", base.HEX),
    checksum = ProtoField.uint32("tb.checksum", "Checksum", base.HEX),
    payload = ProtoField.bytes("tb.payload", "Payload"),
    sent_ns = ProtoField.uint64("tb.probe.sent_ns", "Sent (monotonic), ns"),
    nack_in = ProtoField.framenum("tb.nack_in", "Asked for in", base.NONE, frametype.REQUEST),
    repair_time = ProtoField.relative_time("tb.repair_time", "Time since the NACK"),
    first_in = ProtoField.framenum("tb.first_in", "First seen in"),
}
tb.fields = fields

local experts = {
    malformed = ProtoExpert.new("tb.malformed", "Not a packet of this version", expert.group.MALFORMED, expert.severity.ERROR),
    checksum = ProtoExpert.new("tb.checksum.bad", "Wrong checksum", expert.group.CHECKSUM, expert.severity.ERROR),
    partial = ProtoExpert.new("tb.partial", "Partial result: contributions are missing in it", expert.group.SEQUENCE, expert.severity.WARN),
    late = ProtoExpert.new("tb.late", "Late: its round or its result has passed already", expert.group.SEQUENCE, expert.severity.WARN),
    duplicate = ProtoExpert.new("tb.duplicate", "Duplicate of an earlier packet on this interface", expert.group.SEQUENCE, expert.severity.WARN),
    retransmitted = ProtoExpert.new("tb.retransmitted", "Retransmitted", expert.group.SEQUENCE, expert.severity.NOTE),
    gone = ProtoExpert.new("tb.gone", "Asked for too late: not held any more", expert.group.SEQUENCE, expert.severity.WARN),
}
tb.experts = experts

tb.prefs.check_checksums = Pref.bool("Check checksums", false, "Recompute the checksum of every packet that was captured whole (slow)")

local interface_of_frame = Field.new("frame.interface_id")

-- What is known of the frames so far. A frame is judged when it is dissected for the first time, in order.
local verdicts, seen, newest_round, result_seen, asked

function tb.init()
    verdicts, seen, newest_round, result_seen, asked = {}, {}, {}, {}, {}
end

local crc_table

local function crc32(bytes, crc)
    if not crc_table then
        crc_table = {}
        for i = 0, 255 do
            local value = i
            for _ = 1, 8 do
                local low = bit.band(value, 1)
                value = bit.rshift(value, 1)
                if low == 1 then value = bit.bxor(value, 0xEDB88320) end
            end
            crc_table[i] = value
        end
    end
    for i = 0, bytes:len() - 1 do
        crc = bit.bxor(crc_table[bit.band(bit.bxor(crc, bytes:get_index(i)), 0xFF)], bit.rshift(crc, 8))
    end
    return crc
end

local function checksum_is_good(buffer, size)
    local crc = crc32(buffer(0, CHECKSUM_AT):bytes(), -1)
    crc = crc32(ByteArray.new("00000000"), crc)
    if size > HEADER_BYTES then crc = crc32(buffer(HEADER_BYTES, size - HEADER_BYTES):bytes(), crc) end
    return bit.band(bit.bnot(crc), 0xFFFFFFFF) == bit.band(buffer(CHECKSUM_AT, 4):uint(), 0xFFFFFFFF)
end

local function is_ours(buffer)
    return buffer:captured_len() >= HEADER_BYTES and buffer(0, 2):uint() == MAGIC
end

-- Serial numbers of a NACK or gone: calls `visit` with each.
local function each_number(buffer, visit)
    local first, bitmap = buffer(28, 4):uint(), buffer(40, 8):bytes()
    for i = 0, 63 do
        if bit.band(bitmap:get_index(7 - math.floor(i / 8)), bit.lshift(1, i % 8)) ~= 0 then
            visit((first + i) % 4294967296)
        end
    end
end

-- What the packet is in the light of those before it on its interface.
local function judge(buffer, pinfo, kind, flags)
    local verdict = {}
    local interface = interface_of_frame()
    local way = (interface and tostring(interface) or "") .. "|" .. tostring(pinfo.src) .. "|" .. tostring(pinfo.dst)
    local receiver = tostring(pinfo.dst)
    local round = buffer(16, 4):uint()
    -- The whole header but for tag and checksum; retransmissions differ in their flags.
    local identity = way .. tostring(buffer(0, 48):bytes()) .. tostring(buffer(56, 4):bytes())
    if kind == CONTRIBUTION or kind == RESULT then
        verdict.first_in = seen[identity]
        seen[identity] = seen[identity] or pinfo.number
        local stream_of_rounds = way .. kind
        local newest = newest_round[stream_of_rounds]
        verdict.late = newest ~= nil and round < newest
        if not newest or round > newest then newest_round[stream_of_rounds] = round end
        local key = receiver .. tostring(buffer(8, 14):bytes()) .. buffer(24, 4):uint()
        if kind == RESULT then
            result_seen[key] = true
        elseif bit.band(flags, 1) ~= 0 and result_seen[key] then
            verdict.late = true
        end
    end
    local stream = buffer(56, 4):uint()
    if kind == NACK then
        each_number(buffer, function(number) asked[stream .. "/" .. number] = { pinfo.number, pinfo.abs_ts } end)
    elseif bit.band(flags, 2) ~= 0 and stream ~= 0 then
        verdict.asked = asked[stream .. "/" .. buffer(28, 4):uint()]
    end
    return verdict
end

local function add_header(tree, buffer)
    tree:add(fields.magic, buffer(0, 2))
    tree:add(fields.version, buffer(2, 1))
    tree:add(fields.kind, buffer(3, 1))
    local flags = tree:add(fields.flags, buffer(FLAGS_AT, 1))
    flags:add(fields.bypassed, buffer(FLAGS_AT, 1))
    flags:add(fields.retransmitted, buffer(FLAGS_AT, 1))
    local reason = tree:add(fields.reason, buffer(5, 1))
    tree:add(fields.source, buffer(6, 1))
    tree:add(fields.contributors, buffer(7, 1))
    tree:add(fields.job, buffer(8, 4))
    tree:add(fields.epoch, buffer(12, 4))
    tree:add(fields.round, buffer(16, 4))
    tree:add(fields.shard, buffer(20, 2))
    tree:add(fields.value_count, buffer(22, 2))
    tree:add(fields.chunk, buffer(24, 4))
    tree:add(fields.number, buffer(28, 4))
    tree:add(fields.trailing_edge, buffer(32, 4))
    tree:add(fields.number_format, buffer(36, 1))
    tree:add(fields.bitmap, buffer(40, 8))
    tree:add(fields.tag, buffer(48, 8))
    tree:add(fields.stream, buffer(56, 4))
    return flags, reason, tree:add(fields.checksum, buffer(CHECKSUM_AT, 4))
end

local function is_partial(buffer, kind)
    local reason = buffer(5, 1):uint()
    return kind == RESULT and (reason == TIMEOUT or reason == COLLISION)
end

local function title(buffer, kind, flags)
    local text = kinds[kind] or ("kind " .. kind)
    if is_partial(buffer, kind) then text = "partial " .. text end
    if bit.band(flags, 1) ~= 0 then text = "bypassed " .. text end
    if bit.band(flags, 2) ~= 0 then text = "retransmitted " .. text end
    if kind == NACK or kind == HEARTBEAT or kind == GONE then
        return text .. string.format(" number %u", buffer(28, 4):uint())
    end
    return text .. string.format(" source %u round %u shard %u chunk %u", buffer(6, 1):uint(), buffer(16, 4):uint(),
        buffer(20, 2):uint(), buffer(24, 4):uint())
end

function tb.dissector(buffer, pinfo, root)
    if not is_ours(buffer) then return 0 end
    pinfo.cols.protocol = "TB"
    local kind, flags = buffer(3, 1):uint(), buffer(FLAGS_AT, 1):uint()
    local size = HEADER_BYTES + 4 * buffer(22, 2):uint()
    pinfo.cols.info = title(buffer, kind, flags)
    local tree = root:add(tb, buffer(), "Testbed, " .. title(buffer, kind, flags))
    local flags_item, reason_item, checksum_item = add_header(tree, buffer)
    if buffer(2, 1):uint() ~= VERSION or not kinds[kind] or buffer:reported_len() ~= size then
        tree:add_proto_expert_info(experts.malformed)
        return buffer:captured_len()
    end
    local captured = math.min(buffer:captured_len(), size)
    if kind == PROBE and captured >= HEADER_BYTES + 8 then
        tree:add_le(fields.sent_ns, buffer(HEADER_BYTES, 8))
    elseif captured > HEADER_BYTES then
        tree:add(fields.payload, buffer(HEADER_BYTES, captured - HEADER_BYTES))
    end
    if tb.prefs.check_checksums and captured == size and not checksum_is_good(buffer, size) then
        checksum_item:add_proto_expert_info(experts.checksum)
    end

    if not pinfo.visited then verdicts[pinfo.number] = judge(buffer, pinfo, kind, flags) end
    local verdict = verdicts[pinfo.number] or {}
    if is_partial(buffer, kind) then reason_item:add_proto_expert_info(experts.partial) end
    if bit.band(flags, 2) ~= 0 then flags_item:add_proto_expert_info(experts.retransmitted) end
    if kind == GONE then tree:add_proto_expert_info(experts.gone) end
    if verdict.late then tree:add_proto_expert_info(experts.late) end
    if verdict.first_in then
        tree:add(fields.first_in, verdict.first_in):set_generated()
        tree:add_proto_expert_info(experts.duplicate)
    end
    if verdict.asked then
        tree:add(fields.nack_in, verdict.asked[1]):set_generated()
        local waited = pinfo.abs_ts - verdict.asked[2]
        local whole = math.floor(waited)
        tree:add(fields.repair_time, NSTime.new(whole, math.floor((waited - whole) * 1e9))):set_generated()
    end
    return buffer:captured_len()
end

for _, port in ipairs(PORTS) do
    DissectorTable.get("udp.port"):add(port, tb)
end
