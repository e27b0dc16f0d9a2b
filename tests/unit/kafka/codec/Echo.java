// Reads messages with Kafka's own classes and writes them again, for test_oracle_java.py.
// Standard input: the number of messages, then name, API key, version, size and bytes of each. Standard output: for each
// its size and bytes, or a negative size and the text of an error.

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class Echo {
    public static void main(String[] arguments) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out));
        for (int left = in.readInt(); left > 0; left--) {
            String name = in.readUTF();
            short key = in.readShort();
            short version = in.readShort();
            byte[] frame = new byte[in.readInt()];
            in.readFully(frame);
            try {
                byte[] echo = echo(instance(name, key), version, ByteBuffer.wrap(frame));
                out.writeInt(echo.length);
                out.write(echo);
            } catch (Exception error) {
                byte[] text = error.toString().getBytes(StandardCharsets.UTF_8);
                out.writeInt(-text.length);
                out.write(text);
            }
        }
        out.flush();
    }

    static byte[] echo(ApiMessage message, short version, ByteBuffer frame) {
        message.read(new ByteBufferAccessor(frame), version);
        if (frame.hasRemaining()) {
            throw new IllegalStateException(frame.remaining() + " bytes are left");
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(written), cache, version);
        return written.array();
    }

    static ApiMessage instance(String name, short key) throws ReflectiveOperationException {
        if (name.endsWith("Request")) {
            return ApiMessageType.fromApiKey(key).newRequest();
        }
        if (name.endsWith("Response")) {
            return ApiMessageType.fromApiKey(key).newResponse();
        }
        String data = name.endsWith("Header") ? name + "Data" : name;
        Class<?> type = Class.forName("org.apache.kafka.common.message." + data);
        return (ApiMessage) type.getDeclaredConstructor().newInstance();
    }
}
