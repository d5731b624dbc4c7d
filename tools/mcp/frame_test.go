package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// FuzzFrames reads what a server may write, in pieces of any size. Whatever it is, the
// reader ends, keeps its bounds, and takes the same messages whole or in pieces.
func FuzzFrames(f *testing.F) {
	for _, text := range []string{
		"", "\n", "{}\n", "hello\n", `{"jsonrpc":"2.0","id":1,"result":{}}` + "\n", `{"jsonrpc":"2.0","id":1,"result":{}}` + "\r\n" + `{"jsonrpc":"2.0","id":2,"result":{}}`,
		`[{"jsonrpc":"2.0","id":1,"result":{}}]`, `{"jsonrpc":"2.0","method":"x"}` + "\n" + strings.Repeat("n\n", 10),
		`{"jsonrpc":"2.0","id":"1","method":"ping","params":{"a":[[[[[[[[[1]]]]]]]]]}}`, "\xff\xfe{\"jsonrpc\"", `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}`,
	} {
		f.Add([]byte(text))
	}
	limits := frameLimits{
		lineBytes: 4096, depth: 8, values: 20, noiseLines: 5, noiseBytes: 2048,
		lines: pace{0, 100}, bytes: pace{0, 1 << 20}, unanswered: 4,
	}
	read := func(r io.Reader) (messages []string, noise int, err error) {
		var kept bytes.Buffer
		framer := newFramer(r, &kept, limits)
		for id := range int64(3) {
			request, _ := jsonrpc.MakeID(float64(id))
			framer.noteSent(&jsonrpc.Request{ID: request, Method: "x"})
		}
		for {
			msg, err := framer.readMessage()
			if err != nil {
				return messages, kept.Len(), err
			}
			encoded, encodeErr := jsonrpc.EncodeMessage(msg)
			if encodeErr != nil {
				return messages, kept.Len(), encodeErr
			}
			messages = append(messages, string(encoded))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		whole, noise, err := read(bytes.NewReader(text))
		var violation *ProtocolError
		if !errors.Is(err, io.EOF) && !errors.As(err, &violation) {
			t.Fatalf("error %v", err)
		}
		if len(whole) > limits.lines.burst {
			t.Fatalf("%d messages", len(whole))
		}
		if noise > len(text)+limits.noiseLines+len(whole) {
			t.Fatalf("%d bytes of noise from %d bytes", noise, len(text))
		}
		for _, m := range whole {
			if depth, values, _ := scanObject([]byte(m)); !json.Valid([]byte(m)) || depth > limits.depth || values > limits.values {
				t.Fatalf("message %q", m)
			}
		}
		pieces, _, pieceErr := read(iotest.OneByteReader(bytes.NewReader(text)))
		if strings.Join(whole, "\n") != strings.Join(pieces, "\n") || err.Error() != pieceErr.Error() {
			t.Fatalf("whole: %q, %v; in pieces: %q, %v", whole, err, pieces, pieceErr)
		}
	})
}

func TestScanObject(t *testing.T) {
	for text, want := range map[string]int{
		`{}`: 1, `1`: 0, `[[{}]]`: 0, `{"a":"[[[[","b":[]}`: 2, `{"a\"[[":{}}`: 2, `"\\"`: 0, `{"a":"\\\"{{"}`: 1, `]]]]{`: 0, `{"unfinished`: 1, `"\`: 0, `{} {{{`: 1,
	} {
		if got, _, versioned := scanObject([]byte(text)); got != want || versioned {
			t.Errorf("scanObject(%s) = %d, %t, want %d", text, got, versioned, want)
		}
	}
	for text, want := range map[string]bool{
		`{"jsonrpc":"2.0"}`: true, `{"id":{"a":[1]},"jsonrpc" :`: true, `{"jsonrpc"`: false, `{"a":"jsonrpc"}`: false, `{"a":{"jsonrpc":"2.0"}}`: false,
		`{ts} recv {"jsonrpc":"2.0"}`: false, `{"level":1} <- {"jsonrpc":"2.0"}`: false, `{"\"jsonrpc":1}`: false,
	} {
		if _, _, got := scanObject([]byte(text)); got != want {
			t.Errorf("scanObject(%s): %t, want %t", text, got, want)
		}
	}
}

// TestScanObjectCountsValues: it counts at least as many as there are.
func TestScanObjectCountsValues(t *testing.T) {
	for text, want := range map[string]int{
		`{}`: 1, `{"a":1}`: 1, `{"a":1,"b,[":"{,"}`: 2, `{"a":[1,2,3]}`: 4, `{"a":[{},{},{"b":[]}]}`: 8, `{"a":1},,,`: 1, `{"unfinished":[1,`: 3,
	} {
		if _, got, _ := scanObject([]byte(text)); got != want {
			t.Errorf("scanObject(%s) counts %d values, want %d", text, got, want)
		}
	}
}

// BenchmarkManyValues measures the memory that a message of the largest size, or with the
// most values, takes when it is decoded.
func BenchmarkManyValues(b *testing.B) {
	for name, values := range map[string]int{"largest": defaultFrameLimits.lineBytes / 4, "most values": defaultFrameLimits.values} {
		line := `{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"a":[` + strings.Repeat(`{"a":1},`, values/2-10) + `0]}}}` + "\n"
		b.Run(name, func(b *testing.B) {
			limits := unlimited
			for b.Loop() {
				framer := newFramer(strings.NewReader(line), io.Discard, limits)
				id, _ := jsonrpc.MakeID(float64(1))
				framer.noteSent(&jsonrpc.Request{ID: id, Method: "tools/call"})
				msg, err := framer.readMessage()
				if err != nil {
					b.Fatal(err)
				}
				var result mcp.CallToolResult
				if err := json.Unmarshal(msg.(*jsonrpc.Response).Result, &result); err != nil {
					b.Fatal(err)
				}
				var now runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&now)
				b.ReportMetric(float64(now.HeapAlloc)/1e6, "MB")
				runtime.KeepAlive(result)
			}
		})
	}
}
