package record

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkRecorder writes records of an ordinary size, on the file system of
// TMPDIR. written does not sync. durable syncs each record before its writer
// continues, and reports how many fsyncs that took. batched syncs every 100th,
// like a session that mostly reads. naive is durable without sharing: one lock
// and one fsync per record.
func BenchmarkRecorder(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("written/writers=%d", writers), func(b *testing.B) { benchRecorder(b, writers, 0) })
		b.Run(fmt.Sprintf("batched/writers=%d", writers), func(b *testing.B) { benchRecorder(b, writers, 100) })
		b.Run(fmt.Sprintf("durable/writers=%d", writers), func(b *testing.B) { benchRecorder(b, writers, 1) })
		b.Run(fmt.Sprintf("naive/writers=%d", writers), func(b *testing.B) { benchNaive(b, writers) })
	}
}

// benchRecorder writes b.N records with writers, which sync after every-th of
// their records; 0 is never.
func benchRecorder(b *testing.B, writers, every int) {
	r, err := NewRecorder(RecorderOptions{Dir: b.TempDir(), Session: "ses_01JD0000000000000000000000"})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var syncs atomic.Int64
	r.opts.Sync = func(f *os.File) error {
		syncs.Add(1)
		return f.Sync()
	}
	p := ToolCalled{CallID: "tu_1", Name: "shell", InputHash: FirstHash, Summary: "sh test.sh"}
	spread(b, writers, func(i int) error {
		if _, err := r.Write(Entry{Actor: ActorTool, Payload: p}); err != nil {
			return err
		}
		if every == 0 || i%every != 0 {
			return nil
		}
		return r.Sync()
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(syncs.Load())/float64(b.N), "fsyncs/record")
}

func benchNaive(b *testing.B, writers int) {
	r, err := NewRecorder(RecorderOptions{Dir: b.TempDir(), Session: "ses_01JD0000000000000000000000"})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var mu sync.Mutex
	p := ToolCalled{CallID: "tu_1", Name: "shell", InputHash: FirstHash, Summary: "sh test.sh"}
	spread(b, writers, func(int) error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := r.Write(Entry{Actor: ActorTool, Payload: p}); err != nil {
			return err
		}
		return r.file.Sync()
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(1, "fsyncs/record")
}

// spread calls do b.N times in all, in writers goroutines.
func spread(b *testing.B, writers int, do func(i int) error) {
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range writers {
		wg.Go(func() {
			for i := 1 + w; i <= b.N; i += writers {
				if err := do(i/writers + 1); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}
