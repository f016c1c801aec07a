import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.functions.JoinFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Interval joins and window joins in Flink's DataStream API, over a script: the records and the watermarks of two inputs, in
 * one order that every join sees, so that late records are no accident.
 *
 * <p>The two inputs of an operator race. So the source sends an element only when every join has begun to process the one
 * before it, which a join shows by asking for its key, on its own thread. A watermark has no key: a probe follows it.
 *
 * <p>The argument is a directory: each `*.script` file in it is a job, whose results go to the `*.found` file beside it; see
 * flink.py, which writes the one and reads the other.
 */
public final class FlinkJoins {
    /** The key of an element that brings a watermark, and of the probe behind it. */
    private static final String MARK = "#mark";

    private static final String PROBE = "#probe";

    private FlinkJoins() {}

    /** An element of the script: a record, a mark, whose value is the watermark, or a probe. */
    public static final class Event {
        public int number;
        public String side;
        public String key;
        public long timestamp;
        public long value;

        public Event() {}

        Event(int number, String side, String key, long timestamp, long value) {
            this.number = number;
            this.side = side;
            this.key = key;
            this.timestamp = timestamp;
            this.value = value;
        }

        boolean isRecord() {
            return !key.startsWith("#");
        }
    }

    private static final TypeInformation<Event> EVENT = TypeInformation.of(Event.class);

    /** Lets an element pass when all joins have the ones before it. One job at a time. */
    private static final class Gate implements MapFunction<Event, Event> {
        private static final Set<String> SEEN = new HashSet<>();
        private static Thread source;
        private static int joins;

        static synchronized void reset(int count) {
            SEEN.clear();
            source = null;
            joins = count;
        }

        static void asked(int join, Event event) {
            synchronized (Gate.class) {
                if (Thread.currentThread() != source && SEEN.add(join + " " + event.number)) {
                    Gate.class.notifyAll();
                }
            }
        }

        @Override
        public Event map(Event event) throws InterruptedException {
            synchronized (Gate.class) {
                source = Thread.currentThread();
                while (SEEN.size() < joins * event.number) {
                    Gate.class.wait();
                }
            }
            return event;
        }
    }

    /** The key of an event; says on the thread of a join that it has come there. */
    private static final class Key implements KeySelector<Event, String> {
        private final int join;

        Key(int join) {
            this.join = join;
        }

        @Override
        public String getKey(Event event) {
            Gate.asked(join, event);
            return event.key;
        }
    }

    /** The watermarks that the marks bring. */
    private static final class Marks implements WatermarkGenerator<Event> {
        @Override
        public void onEvent(Event event, long timestamp, WatermarkOutput output) {
            if (event.key.equals(MARK)) {
                output.emitWatermark(new Watermark(event.value));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    /** Two records that have met, and the timestamp of what is made of them. */
    private static final class Pair extends ProcessJoinFunction<Event, Event, String> {
        private final String number;

        Pair(String number) {
            this.number = number;
        }

        @Override
        public void processElement(Event left, Event right, Context context, Collector<String> out) {
            if (left.isRecord()) {
                out.collect(String.join(" ", "pair", number, "" + left.value, "" + right.value, "" + context.getTimestamp()));
            }
        }
    }

    /** A record that was late for an interval join. */
    private static final class Late implements MapFunction<Event, String> {
        private final String number;

        Late(String number) {
            this.number = number;
        }

        @Override
        public String map(Event event) {
            return String.join(" ", "late", number, event.side, "" + event.value);
        }
    }

    /** Two records of one window. */
    private static final class Joined implements JoinFunction<Event, Event, String> {
        private final String number;

        Joined(String number) {
            this.number = number;
        }

        @Override
        public String join(Event left, Event right) {
            return left.isRecord() ? String.join(" ", "joined", number, "" + left.value, "" + right.value) : "";
        }
    }

    /** The records of a window, of either side: their values with commas between, behind a colon. */
    private static final class Group implements CoGroupFunction<Event, Event, String> {
        private final String number;

        Group(String number) {
            this.number = number;
        }

        @Override
        public void coGroup(Iterable<Event> lefts, Iterable<Event> rights, Collector<String> out) {
            String both = String.join(" ", "group", number, values(lefts), values(rights));
            if (!both.endsWith(": :")) {
                out.collect(both);
            }
        }

        private static String values(Iterable<Event> events) {
            return StreamSupport.stream(events.spliterator(), false)
                    .filter(Event::isRecord)
                    .map(event -> "" + event.value)
                    .collect(Collectors.joining(",", ":", ""));
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Path> scripts;
        try (Stream<Path> files = Files.list(Path.of(arguments[0]))) {
            scripts = files.filter(path -> path.toString().endsWith(".script")).sorted().collect(Collectors.toList());
        }
        for (Path path : scripts) {
            List<String[]> lines =
                    Files.readAllLines(path).stream().map(line -> line.split(" ")).collect(Collectors.toList());
            String name = path.getFileName().toString().replace(".script", ".found");
            Files.write(path.resolveSibling(name), run(lines));
        }
    }

    private static List<String> run(List<String[]> lines) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1);
        environment.getConfig().setAutoWatermarkInterval(0);
        environment.setBufferTimeout(0);
        DataStream<Event> events =
                environment.fromData(script(lines), EVENT).map(new Gate());
        DataStream<Event> left = side(events, "left");
        DataStream<Event> right = side(events, "right");
        List<DataStream<String>> found = new ArrayList<>();
        int joins = 0;
        for (String[] words : lines) {
            if (words[0].equals("interval")) {
                addInterval(found, left.keyBy(new Key(joins)), right.keyBy(new Key(joins)), words);
                joins += 1;
            } else if (words[0].equals("window")) {
                addWindows(found, left, right, words, joins);
                joins += 2;
            }
        }
        Gate.reset(joins);
        DataStream<String> all = found.get(0);
        for (DataStream<String> more : found.subList(1, found.size())) {
            all = all.union(more);
        }
        List<String> results = new ArrayList<>();
        try (CloseableIterator<String> each = all.executeAndCollect()) {
            each.forEachRemaining(results::add);
        }
        return results.stream().filter(line -> !line.isEmpty()).collect(Collectors.toList());
    }

    /** The elements of the lines `record side key timestamp value` and `mark side watermark`, numbered. */
    private static List<Event> script(List<String[]> lines) {
        List<Event> script = new ArrayList<>();
        for (String[] words : lines) {
            if (words[0].equals("record")) {
                script.add(new Event(script.size(), words[1], words[2], number(words, 3), number(words, 4)));
            } else if (words[0].equals("mark")) {
                long watermark = number(words, 2);
                script.add(new Event(script.size(), words[1], MARK, watermark, watermark));
                script.add(new Event(script.size(), words[1], PROBE, watermark, watermark));
            }
        }
        return script;
    }

    private static long number(String[] words, int place) {
        return Long.parseLong(words[place]);
    }

    private static DataStream<Event> side(
            DataStream<Event> events, String side) {
        return events.filter(event -> event.side.equals(side))
                .assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Event>forGenerator(context -> new Marks())
                                .withTimestampAssigner((event, before) -> event.timestamp));
    }

    /** interval, number, lower and upper bound, whether either is exclusive. */
    private static void addInterval(
            List<DataStream<String>> found,
            KeyedStream<Event, String> left,
            KeyedStream<Event, String> right,
            String[] words) {
        OutputTag<Event> late = new OutputTag<>("late", EVENT);
        KeyedStream.IntervalJoined<Event, Event, String> joined =
                left.intervalJoin(right)
                        .between(Duration.ofMillis(number(words, 2)), Duration.ofMillis(number(words, 3)))
                        .sideOutputLeftLateData(late)
                        .sideOutputRightLateData(late);
        if (words[4].equals("true")) {
            joined = joined.lowerBoundExclusive();
        }
        if (words[5].equals("true")) {
            joined = joined.upperBoundExclusive();
        }
        SingleOutputStreamOperator<String> pairs = joined.process(new Pair(words[1]));
        found.add(pairs);
        found.add(pairs.getSideOutput(late).filter(Event::isRecord).map(new Late(words[1])));
    }

    /** window, number, kind, size, slide, allowed lateness, count (0: at the end): as a join and as a co-group. */
    private static void addWindows(
            List<DataStream<String>> found,
            DataStream<Event> left,
            DataStream<Event> right,
            String[] words,
            int join) {
        Duration size = Duration.ofMillis(number(words, 3));
        WindowAssigner<Object, TimeWindow> assigner;
        switch (words[2]) {
            case "tumbling":
                assigner = TumblingEventTimeWindows.of(size);
                break;
            case "sliding":
                assigner = SlidingEventTimeWindows.of(size, Duration.ofMillis(number(words, 4)));
                break;
            default:
                assigner = EventTimeSessionWindows.withGap(size);
        }
        Duration lateness = Duration.ofMillis(number(words, 5));
        Trigger<Object, TimeWindow> end = EventTimeTrigger.create();
        found.add(
                left.join(right)
                        .where(new Key(join))
                        .equalTo(new Key(join))
                        .window(assigner)
                        .trigger(number(words, 6) > 0 ? count(number(words, 6)) : end)
                        .allowedLateness(lateness)
                        .apply(new Joined(words[1]), Types.STRING));
        found.add(
                left.coGroup(right)
                        .where(new Key(join + 1))
                        .equalTo(new Key(join + 1))
                        .window(assigner)
                        .trigger(number(words, 6) > 0 ? count(number(words, 6)) : end)
                        .allowedLateness(lateness)
                        .apply(new Group(words[1]), Types.STRING));
    }

    /** A count trigger for records of either side. */
    @SuppressWarnings("unchecked")
    private static <T> Trigger<T, TimeWindow> count(long records) {
        return (Trigger<T, TimeWindow>) (Trigger<?, ?>) CountTrigger.of(records);
    }
}
