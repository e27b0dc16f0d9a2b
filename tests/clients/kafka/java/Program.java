// A Kafka client for the tests: the official Java clients, told what to do by lines of JSON on standard input, one
// answer per line. program_driver.py writes the lines; its other program does the same with franz-go.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Program {
    static final int CLIENT_BYTES_MAX = 32 << 20;
    static final Duration PATIENCE = Duration.ofSeconds(120);
    static final ObjectMapper JSON = new ObjectMapper();

    final Map<String, Object> common = new HashMap<>();
    final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    final Admin admin;

    Program(String address, String caFile) {
        common.put("bootstrap.servers", address);
        common.put("metadata.max.age.ms", 300);
        if (!caFile.isEmpty()) {
            common.put("security.protocol", "SSL");
            common.put("ssl.truststore.type", "PEM");
            common.put("ssl.truststore.location", caFile);
        }
        admin = Admin.create(new HashMap<>(common));
    }

    KafkaProducer<byte[], byte[]> producer(JsonNode how) {
        return producers.computeIfAbsent(how.toString(), unused -> {
            Map<String, Object> settings = new HashMap<>(common);
            settings.put("compression.type", how.get("codec").asText());
            settings.put("acks", how.get("acks").asText());
            settings.put("enable.idempotence", how.get("idempotent").asBoolean());
            settings.put("linger.ms", how.get("linger_ms").asInt());
            settings.put("max.request.size", CLIENT_BYTES_MAX);
            settings.put("buffer.memory", 2 * CLIENT_BYTES_MAX);
            settings.put("max.block.ms", 20_000); // how long a record waits for metadata of its partition
            return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        });
    }

    ObjectNode produce(JsonNode request) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer(request.get("how"));
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        for (JsonNode record : request.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : record.get("headers")) {
                headers.add(new RecordHeader(header.get("name").asText(), bytes(header.get("value"))));
            }
            JsonNode timeMs = record.get("timestamp_ms");
            answers.add(producer.send(new ProducerRecord<>(
                request.get("topic").asText(), record.get("partition").asInt(), timeMs.isNull() ? null : timeMs.asLong(),
                bytes(record.get("key")), bytes(record.get("value")), headers)));
        }
        producer.flush();
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode offsets = answer.putArray("offsets");
        for (Future<RecordMetadata> each : answers) {
            RecordMetadata metadata = each.get();
            offsets.add(metadata.hasOffset() ? metadata.offset() : -1);
        }
        return answer;
    }

    ObjectNode fetch(JsonNode request) {
        Map<String, Object> settings = new HashMap<>(common);
        settings.put("auto.offset.reset", "none");
        settings.put("max.partition.fetch.bytes", CLIENT_BYTES_MAX);
        settings.put("fetch.max.bytes", CLIENT_BYTES_MAX);
        settings.put("max.poll.records", request.get("count").asInt());
        String topic = request.get("topic").asText();
        Map<TopicPartition, Long> starts = new HashMap<>();
        request.get("starts").properties().forEach(
            start -> starts.put(new TopicPartition(topic, Integer.parseInt(start.getKey())), start.getValue().asLong()));
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(starts.keySet());
            starts.forEach(consumer::seek);
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (records.size() < request.get("count").asInt()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("only " + records.size() + " records came");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    ObjectNode made = records.addObject();
                    made.put("partition", record.partition()).put("offset", record.offset());
                    made.put("key", record.key()).put("value", record.value());
                    made.put("timestamp_ms", record.timestamp());
                    made.put("is_append_time", record.timestampType() == TimestampType.LOG_APPEND_TIME);
                    ArrayNode headers = made.putArray("headers");
                    for (Header header : record.headers()) {
                        headers.addObject().put("name", header.key()).put("value", header.value());
                    }
                }
            }
        }
        return answer;
    }

    ObjectNode offsetAt(JsonNode request) throws Exception {
        TopicPartition log = log(request);
        long timeMs = request.get("time_ms").asLong();
        OffsetSpec spec = timeMs == -2 ? OffsetSpec.earliest() : timeMs == -1 ? OffsetSpec.latest() : OffsetSpec.forTimestamp(timeMs);
        long offset = admin.listOffsets(Map.of(log, spec)).partitionResult(log).get().offset();
        ObjectNode answer = JSON.createObjectNode();
        return offset < 0 ? answer.putNull("offset") : answer.put("offset", offset);
    }

    ObjectNode create(JsonNode request) throws Exception {
        Map<String, String> configs = new HashMap<>();
        request.get("configs").properties().forEach(each -> configs.put(each.getKey(), each.getValue().asText()));
        NewTopic topic = new NewTopic(request.get("topic").asText(), Optional.of(request.get("partitions").asInt()), Optional.empty());
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(request.get("validate_only").asBoolean());
        admin.createTopics(List.of(topic.configs(configs)), options).all().get();
        return JSON.createObjectNode();
    }

    ObjectNode topics() throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ObjectNode counts = answer.putObject("topics");
        // Each description is its own future: a topic may be deleted after it was listed.
        for (var described : admin.describeTopics(admin.listTopics().names().get()).topicNameValues().entrySet()) {
            try {
                TopicDescription topic = described.getValue().get();
                counts.put(topic.name(), topic.partitions().size());
            } catch (ExecutionException gone) {
                if (Errors.forException(gone.getCause()) != Errors.UNKNOWN_TOPIC_OR_PARTITION) throw gone;
            }
        }
        return answer;
    }

    ObjectNode configs(JsonNode request) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, request.get("topic").asText());
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        ObjectNode answer = JSON.createObjectNode();
        ObjectNode values = answer.putObject("configs");
        for (ConfigEntry entry : config.entries()) {
            values.put(entry.name(), entry.value());
        }
        return answer;
    }

    ObjectNode setConfig(JsonNode request) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, request.get("topic").asText());
        boolean reset = request.get("value").isNull();
        ConfigEntry entry = new ConfigEntry(request.get("name").asText(), reset ? null : request.get("value").asText());
        AlterConfigOp change = new AlterConfigOp(entry, reset ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        return JSON.createObjectNode();
    }

    ObjectNode deleteRecords(JsonNode request) throws Exception {
        TopicPartition log = log(request);
        var deleted = admin.deleteRecords(Map.of(log, RecordsToDelete.beforeOffset(request.get("before").asLong())));
        return JSON.createObjectNode().put("low_watermark", deleted.lowWatermarks().get(log).get().lowWatermark());
    }

    ObjectNode handle(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        switch (request.get("op").asText()) {
            case "produce": return produce(request);
            case "fetch": return fetch(request);
            case "offset_at": return offsetAt(request);
            case "create": return create(request);
            case "delete":
                admin.deleteTopics(List.of(topic)).all().get();
                return JSON.createObjectNode();
            case "grow":
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(request.get("partitions").asInt()))).all().get();
                return JSON.createObjectNode();
            case "topics": return topics();
            case "configs": return configs(request);
            case "set_config": return setConfig(request);
            case "delete_records": return deleteRecords(request);
            default: throw new IllegalArgumentException("no such operation: " + request.get("op"));
        }
    }

    static TopicPartition log(JsonNode request) {
        return new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
    }

    static byte[] bytes(JsonNode given) {
        return given.isNull() ? null : Base64.getDecoder().decode(given.asText());
    }

    static short code(Throwable error) {
        if (error instanceof org.apache.kafka.clients.consumer.OffsetOutOfRangeException) {
            return Errors.OFFSET_OUT_OF_RANGE.code(); // the consumer has a class of its own for it
        }
        return Errors.forException(error).code();
    }

    public static void main(String[] arguments) throws Exception {
        // Answers only: whatever a library prints goes to standard error.
        PrintStream output = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Program program = new Program(arguments[0], arguments[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer;
            try {
                answer = program.handle(JSON.readTree(line));
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer = JSON.createObjectNode().put("error", code(cause)).put("message", String.valueOf(cause));
            }
            output.println(JSON.writeValueAsString(answer));
        }
        System.exit(0); // clients with unsent records would keep the process
    }
}
