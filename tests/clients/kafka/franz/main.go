// A Kafka client for the tests: franz-go, told what to do by lines of JSON on standard input, one answer per line.
//
// program_driver.py writes the lines; its other program does the same with the Java clients.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	clientBytesMax = 32 << 20
	answerTimeout  = 120 * time.Second
)

type header struct {
	Name  string  `json:"name"`
	Value *[]byte `json:"value"`
}

type record struct {
	Partition    int32    `json:"partition"`
	Offset       int64    `json:"offset"`
	Key          *[]byte  `json:"key"`
	Value        *[]byte  `json:"value"`
	Headers      []header `json:"headers"`
	TimestampMs  *int64   `json:"timestamp_ms"`
	IsAppendTime bool     `json:"is_append_time"`
}

type how struct {
	Codec      string `json:"codec"`
	Acks       int    `json:"acks"`
	Idempotent bool   `json:"idempotent"`
	LingerMs   int    `json:"linger_ms"`
	Name       string `json:"name"`
}

type request struct {
	Op           string             `json:"op"`
	Topic        string             `json:"topic"`
	Partition    int32              `json:"partition"`
	Partitions   int32              `json:"partitions"`
	Configs      map[string]*string `json:"configs"`
	ValidateOnly bool               `json:"validate_only"`
	Name         string             `json:"name"`
	Value        *string            `json:"value"`
	Before       int64              `json:"before"`
	TimeMs       int64              `json:"time_ms"`
	Records      []record           `json:"records"`
	How          how                `json:"how"`
	Starts       map[int32]int64    `json:"starts"`
	Count        int                `json:"count"`
}

type answer map[string]any

type program struct {
	common    []kgo.Opt
	client    *kgo.Client
	admin     *kadm.Client
	producers map[how]*kgo.Client
}

func start(address, caFile string) (*program, error) {
	common := []kgo.Opt{
		kgo.SeedBrokers(address),
		kgo.MetadataMaxAge(300 * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		common = append(common, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}))
	}
	client, err := kgo.NewClient(common...)
	if err != nil {
		return nil, err
	}
	return &program{common, client, kadm.NewClient(client), map[how]*kgo.Client{}}, nil
}

func (p *program) producer(h how) (*kgo.Client, error) {
	if found, ok := p.producers[h]; ok {
		return found, nil
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[int]kgo.Acks{0: kgo.NoAck(), 1: kgo.LeaderAck(), -1: kgo.AllISRAcks()}
	opts := append([]kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[h.Codec]),
		kgo.RequiredAcks(acks[h.Acks]),
		kgo.ProducerLinger(time.Duration(h.LingerMs) * time.Millisecond),
		kgo.ProducerBatchMaxBytes(clientBytesMax),
		kgo.BrokerMaxWriteBytes(2 * clientBytesMax),
		kgo.AllowAutoTopicCreation(),
	}, p.common...)
	if !h.Idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(opts...)
	p.producers[h] = client
	return client, err
}

func (p *program) produce(ctx context.Context, r request) (answer, error) {
	client, err := p.producer(r.How)
	if err != nil {
		return nil, err
	}
	records := make([]*kgo.Record, len(r.Records))
	for i, given := range r.Records {
		made := &kgo.Record{Topic: r.Topic, Partition: given.Partition, Key: bytesOf(given.Key), Value: bytesOf(given.Value)}
		if given.TimestampMs != nil {
			made.Timestamp = time.UnixMilli(*given.TimestampMs)
		}
		for _, h := range given.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: h.Name, Value: bytesOf(h.Value)})
		}
		records[i] = made
	}
	offsets := make([]int64, len(records))
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, err
	}
	for i, made := range records {
		offsets[i] = made.Offset
	}
	return answer{"offsets": offsets}, nil
}

func (p *program) fetch(ctx context.Context, r request) (answer, error) {
	starts := map[int32]kgo.Offset{}
	for partition, offset := range r.Starts {
		starts[partition] = kgo.NoResetOffset().At(offset)
	}
	opts := append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: starts}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxBytes(clientBytesMax),
		kgo.FetchMaxPartitionBytes(clientBytesMax),
		kgo.BrokerMaxReadBytes(2 * clientBytesMax),
		kgo.FetchMaxWait(500 * time.Millisecond),
	}, p.common...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []record{}
	for len(found) < r.Count {
		fetches := client.PollRecords(ctx, r.Count-len(found))
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		fetches.EachRecord(func(fetched *kgo.Record) {
			timeMs := fetched.Timestamp.UnixMilli()
			made := record{
				Partition: fetched.Partition, Offset: fetched.Offset, Key: pointerTo(fetched.Key),
				Value: pointerTo(fetched.Value), Headers: []header{}, TimestampMs: &timeMs,
				IsAppendTime: fetched.Attrs.TimestampType() == 1,
			}
			for _, h := range fetched.Headers {
				made.Headers = append(made.Headers, header{h.Key, pointerTo(h.Value)})
			}
			found = append(found, made)
		})
	}
	return answer{"records": found}, nil
}

func (p *program) offsetAt(ctx context.Context, r request) (answer, error) {
	var listed kadm.ListedOffsets
	var err error
	switch r.TimeMs {
	case -2:
		listed, err = p.admin.ListStartOffsets(ctx, r.Topic)
	case -1:
		listed, err = p.admin.ListEndOffsets(ctx, r.Topic)
	default:
		listed, err = p.admin.ListOffsetsAfterMilli(ctx, r.TimeMs, r.Topic)
	}
	if err != nil {
		return nil, err
	}
	offset, ok := listed.Lookup(r.Topic, r.Partition)
	if !ok {
		return nil, fmt.Errorf("no answer about partition %d", r.Partition)
	}
	if offset.Err != nil {
		return nil, offset.Err
	}
	if r.TimeMs >= 0 && offset.Timestamp < 0 { // kadm puts the end of the log where no record is as late
		return answer{"offset": nil}, nil
	}
	return answer{"offset": offset.Offset}, nil
}

func (p *program) create(ctx context.Context, r request) error {
	call := p.admin.CreateTopics
	if r.ValidateOnly {
		call = p.admin.ValidateCreateTopics
	}
	answers, err := call(ctx, r.Partitions, 1, r.Configs, r.Topic)
	if err != nil {
		return err
	}
	return answers.Error()
}

func (p *program) setConfig(ctx context.Context, r request) error {
	change := kadm.AlterConfig{Op: kadm.SetConfig, Name: r.Name, Value: r.Value}
	if r.Value == nil {
		change.Op = kadm.DeleteConfig
	}
	answers, err := p.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{change}, r.Topic)
	if err != nil {
		return err
	}
	for _, each := range answers {
		if each.Err != nil {
			return each.Err
		}
	}
	return nil
}

func (p *program) deleteRecords(ctx context.Context, r request) (answer, error) {
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.Before})
	answers, err := p.admin.DeleteRecords(ctx, offsets)
	if err != nil {
		return nil, err
	}
	deleted, _ := answers.Lookup(r.Topic, r.Partition)
	return answer{"low_watermark": deleted.LowWatermark}, deleted.Err
}

func (p *program) handle(r request) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	switch r.Op {
	case "produce":
		return p.produce(ctx, r)
	case "fetch":
		return p.fetch(ctx, r)
	case "offset_at":
		return p.offsetAt(ctx, r)
	case "create":
		return answer{}, p.create(ctx, r)
	case "delete":
		answers, err := p.admin.DeleteTopics(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		return answer{}, answers.Error()
	case "grow":
		answers, err := p.admin.UpdatePartitions(ctx, int(r.Partitions), r.Topic)
		if err != nil {
			return nil, err
		}
		return answer{}, answers.Error()
	case "topics":
		listed, err := p.admin.ListTopics(ctx)
		if err != nil {
			return nil, err
		}
		counts := map[string]int{}
		for name, detail := range listed {
			counts[name] = len(detail.Partitions)
		}
		return answer{"topics": counts}, nil
	case "configs":
		described, err := p.admin.DescribeTopicConfigs(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		values := map[string]*string{}
		for _, entry := range described[0].Configs {
			values[entry.Key] = entry.Value
		}
		return answer{"configs": values}, described[0].Err
	case "set_config":
		return answer{}, p.setConfig(ctx, r)
	case "delete_records":
		return p.deleteRecords(ctx, r)
	}
	return nil, fmt.Errorf("no such operation: %q", r.Op)
}

func bytesOf(given *[]byte) []byte {
	if given == nil {
		return nil
	}
	if *given == nil {
		return []byte{}
	}
	return *given
}

func pointerTo(given []byte) *[]byte {
	if given == nil {
		return nil
	}
	return &given
}

func main() {
	p, err := start(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		made, err := p.handle(r)
		if err != nil {
			code := int16(-1)
			var told *kerr.Error
			if errors.As(err, &told) {
				code = told.Code
			}
			made = answer{"error": code, "message": err.Error()}
		}
		if err := output.Encode(made); err != nil {
			os.Exit(1)
		}
	}
}
