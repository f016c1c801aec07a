import java.util.Arrays;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.util.Collector;

/**
 * Latency of generator, keyBy, count and sink in Flink's DataStream API, in one JVM.
 *
 * <p>Arguments: parallelism, records per second, seconds of warm-up, seconds measured, buffer timeout in ms, checkpoint
 * interval in ms (0: none) and the directory of the checkpoints. Prints one JSON object: records measured, p50 and p99
 * from a record's creation to its arrival in the sink.
 */
public final class Latency {
    private static final int APPS = 1000;
    private static long[][] latencies;
    private static long warmUpNanos;
    private static volatile long measureFromNanos;

    private Latency() {}

    /** Creates records at a steady rate; after a stall it catches up at once. */
    private static final class Generator extends RichParallelSourceFunction<Tuple2<String, Long>> {
        private final double nanosPerRecord;
        private final long records;
        private volatile boolean running = true;

        Generator(double nanosPerRecord, long records) {
            this.nanosPerRecord = nanosPerRecord;
            this.records = records;
        }

        @Override
        public void run(SourceContext<Tuple2<String, Long>> context) {
            String[] apps = new String[APPS];
            for (int app = 0; app < APPS; app++) {
                apps[app] = String.format("app-%04d", app);
            }
            long started = System.nanoTime();
            synchronized (Latency.class) {
                if (measureFromNanos == 0) {
                    measureFromNanos = started + warmUpNanos;
                }
            }
            for (long i = 0; i < records && running; i++) {
                long due = started + (long) (i * nanosPerRecord);
                long wait = due - System.nanoTime();
                if (wait > 0) {
                    LockSupport.parkNanos(wait);
                }
                // A stride that is prime to APPS visits every app.
                context.collect(Tuple2.of(apps[(int) (i * 617 % APPS)], System.nanoTime()));
            }
        }

        @Override
        public void cancel() {
            running = false;
        }
    }

    /** The running count of each app, one result per record. */
    private static final class Count
            extends KeyedProcessFunction<String, Tuple2<String, Long>, Tuple3<String, Long, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
        }

        @Override
        public void processElement(
                Tuple2<String, Long> click, Context context, Collector<Tuple3<String, Long, Long>> out)
                throws Exception {
            Long before = count.value();
            long after = before == null ? 1L : before + 1L;
            count.update(after);
            out.collect(Tuple3.of(click.f0, after, click.f1));
        }
    }

    /** Notes each record's age. */
    private static final class Ages extends RichSinkFunction<Tuple3<String, Long, Long>> {
        private transient long[] ages;
        private transient int next;

        @Override
        public void open(OpenContext context) {
            ages = latencies[getRuntimeContext().getTaskInfo().getIndexOfThisSubtask()];
            next = 0;
        }

        @Override
        public void invoke(Tuple3<String, Long, Long> counted, Context context) {
            if (counted.f2 >= measureFromNanos && next < ages.length) {
                ages[next++] = System.nanoTime() - counted.f2;
            }
        }
    }

    public static void main(String[] args) throws Exception {
        int parallelism = Integer.parseInt(args[0]);
        int rate = Integer.parseInt(args[1]);
        double warmUpS = Double.parseDouble(args[2]);
        double measureS = Double.parseDouble(args[3]);
        long bufferTimeoutMs = Long.parseLong(args[4]);
        long checkpointMs = Long.parseLong(args[5]);
        warmUpNanos = (long) (warmUpS * 1e9);
        long records = (long) (rate * (warmUpS + measureS));
        latencies = new long[parallelism][(int) records];
        for (long[] part : latencies) {
            Arrays.fill(part, -1L);
        }
        Configuration options = new Configuration();
        options.setString("taskmanager.memory.managed.size", "64m");
        options.setString("execution.checkpointing.storage", "filesystem");
        options.setString("execution.checkpointing.dir", args[6]);
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, options);
        environment.getConfig().enableObjectReuse();
        environment.setBufferTimeout(bufferTimeoutMs);
        if (checkpointMs > 0) {
            environment.enableCheckpointing(checkpointMs);
        }
        environment
                .addSource(new Generator(1e9 * parallelism / rate, records / parallelism))
                .returns(new TypeHint<Tuple2<String, Long>>() {})
                .keyBy(click -> click.f0)
                .process(new Count())
                .addSink(new Ages());
        environment.execute("latency");
        long[] ages =
                Arrays.stream(latencies).flatMapToLong(Arrays::stream).filter(age -> age >= 0).sorted().toArray();
        System.out.printf(
                "{\"measured\": %d, \"p50_ms\": %.4f, \"p99_ms\": %.4f}%n",
                ages.length, ages[ages.length / 2] / 1e6, ages[(int) (ages.length * 0.99)] / 1e6);
    }
}
