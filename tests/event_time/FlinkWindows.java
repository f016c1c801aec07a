import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.datastream.WindowedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.triggers.PurgingTrigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Windows, late records and interval joins in Flink's DataStream API, with a watermark behind every record.
 *
 * <p>The argument is a directory: each `*.case` file in it is a job, whose results go to the `*.found` file beside it. The
 * lines of both are words with spaces between them; see flink.py, which writes the one and reads the other.
 */
public final class FlinkWindows {
    private FlinkWindows() {}

    /** A watermark that is `delay` behind the highest timestamp so far, sent behind each record. */
    private static final class BehindEachRecord implements WatermarkGenerator<Tuple3<String, Long, Long>> {
        private final long delay;
        private long highest = Long.MIN_VALUE;

        BehindEachRecord(long delay) {
            this.delay = delay;
        }

        @Override
        public void onEvent(Tuple3<String, Long, Long> event, long timestamp, WatermarkOutput output) {
            highest = Math.max(highest, timestamp);
            output.emitWatermark(new Watermark(highest - delay - 1));
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    /** The values of a window in the order in which it has them. */
    private static final class Pane
            extends ProcessWindowFunction<Tuple3<String, Long, Long>, String, String, TimeWindow> {
        private final String number;

        Pane(String number) {
            this.number = number;
        }

        @Override
        public void process(
                String key, Context context, Iterable<Tuple3<String, Long, Long>> elements, Collector<String> out) {
            String values =
                    StreamSupport.stream(elements.spliterator(), false)
                            .map(each -> each.f2.toString())
                            .collect(Collectors.joining(","));
            TimeWindow window = context.window();
            out.collect(String.join(" ", "pane", number, key, "" + window.getStart(), "" + window.getEnd(), values));
        }
    }

    /** A record that was too late for its windows. */
    private static final class Late implements MapFunction<Tuple3<String, Long, Long>, String> {
        private final String number;

        Late(String number) {
            this.number = number;
        }

        @Override
        public String map(Tuple3<String, Long, Long> event) {
            return String.join(" ", "late", number, event.f0, event.f1.toString(), event.f2.toString());
        }
    }

    /** Two records that have met, and the timestamp of what is made of them. */
    private static final class Pair
            extends ProcessJoinFunction<Tuple3<String, Long, Long>, Tuple3<String, Long, Long>, String> {
        private final String number;

        Pair(String number) {
            this.number = number;
        }

        @Override
        public void processElement(
                Tuple3<String, Long, Long> left,
                Tuple3<String, Long, Long> right,
                Context context,
                Collector<String> out) {
            out.collect(
                    String.join(
                            " ", "pair", number, left.f0, left.f2.toString(), right.f2.toString(),
                            "" + context.getTimestamp()));
        }
    }

    /** The key of an event. */
    private static final class Key implements KeySelector<Tuple3<String, Long, Long>, String> {
        @Override
        public String getKey(Tuple3<String, Long, Long> event) {
            return event.f0;
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Path> cases;
        try (Stream<Path> files = Files.list(Path.of(arguments[0]))) {
            cases = files.filter(path -> path.toString().endsWith(".case")).sorted().collect(Collectors.toList());
        }
        for (Path path : cases) {
            List<String[]> lines =
                    Files.readAllLines(path).stream().map(line -> line.split(" ")).collect(Collectors.toList());
            String name = path.getFileName().toString().replace(".case", ".found");
            Files.write(path.resolveSibling(name), run(lines));
        }
    }

    private static List<String> run(List<String[]> lines) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1);
        environment.getConfig().setAutoWatermarkInterval(0);
        KeyedStream<Tuple3<String, Long, Long>, String> left = keyed(environment, lines, "left");
        KeyedStream<Tuple3<String, Long, Long>, String> right = keyed(environment, lines, "right");
        List<DataStream<String>> found = new ArrayList<>();
        for (String[] words : lines) {
            if (words[0].equals("windows")) {
                addWindows(found, left, words);
            } else if (words[0].equals("join")) {
                found.add(
                        left.intervalJoin(right)
                                .between(Duration.ofMillis(number(words, 2)), Duration.ofMillis(number(words, 3)))
                                .process(new Pair(words[1])));
            }
        }
        DataStream<String> all = found.get(0);
        for (DataStream<String> more : found.subList(1, found.size())) {
            all = all.union(more);
        }
        List<String> results = new ArrayList<>();
        try (CloseableIterator<String> each = all.executeAndCollect()) {
            each.forEachRemaining(results::add);
        }
        return results;
    }

    private static long number(String[] words, int place) {
        return Long.parseLong(words[place]);
    }

    /** The events of one side, keyed; none if the case has none of them. */
    private static KeyedStream<Tuple3<String, Long, Long>, String> keyed(
            StreamExecutionEnvironment environment, List<String[]> lines, String side) {
        long delay = number(lines.stream().filter(words -> words[0].equals("delay")).findFirst().get(), 1);
        List<Tuple3<String, Long, Long>> events =
                lines.stream()
                        .filter(words -> words[0].equals(side))
                        .map(words -> Tuple3.of(words[1], number(words, 2), number(words, 3)))
                        .collect(Collectors.toList());
        if (events.isEmpty()) {
            return null;
        }
        return environment
                .fromData(events, Types.TUPLE(Types.STRING, Types.LONG, Types.LONG))
                .assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Tuple3<String, Long, Long>>forGenerator(
                                        context -> new BehindEachRecord(delay))
                                .withTimestampAssigner((event, before) -> event.f1))
                .keyBy(new Key());
    }

    /** windows, number, kind, size, slide, offset, allowed lateness, count (0: at the end), whether it purges. */
    private static void addWindows(
            List<DataStream<String>> found, KeyedStream<Tuple3<String, Long, Long>, String> events, String[] words) {
        Duration size = Duration.ofMillis(number(words, 3));
        Duration slide = Duration.ofMillis(number(words, 4));
        Duration offset = Duration.ofMillis(number(words, 5));
        WindowAssigner<Object, TimeWindow> assigner;
        switch (words[2]) {
            case "tumbling":
                assigner = TumblingEventTimeWindows.of(size, offset);
                break;
            case "sliding":
                assigner = SlidingEventTimeWindows.of(size, slide, offset);
                break;
            default:
                assigner = EventTimeSessionWindows.withGap(size);
        }
        OutputTag<Tuple3<String, Long, Long>> late = new OutputTag<>("late") {};
        WindowedStream<Tuple3<String, Long, Long>, String, TimeWindow> windows =
                events.window(assigner)
                        .allowedLateness(Duration.ofMillis(number(words, 6)))
                        .sideOutputLateData(late);
        if (number(words, 7) > 0) {
            CountTrigger<TimeWindow> count = CountTrigger.of(number(words, 7));
            windows = windows.trigger(words[8].equals("true") ? PurgingTrigger.of(count) : count);
        }
        SingleOutputStreamOperator<String> panes = windows.process(new Pane(words[1]));
        found.add(panes);
        found.add(panes.getSideOutput(late).map(new Late(words[1])));
    }
}
