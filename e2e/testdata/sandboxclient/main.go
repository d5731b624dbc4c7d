// Command sandboxclient uses sandboxes over HTTP with a client that a generator made from
// /openapi.json: api is that client. It sends each request again until it has the whole
// answer, as the connection may be cut anywhere.
//
//	sandboxclient URL COUNT WORKERS [no-keys]
//
// It prints a line for each sandbox: how often its three commands ran. Without keys it is a
// control, in which a command may run twice.
package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"sandboxclient/api"
)

// commands is the number of commands of each sandbox, and attempts the most for a request.
const (
	commands = 3
	attempts = 100
)

// script appends a line for each run, and fails in the second.
const script = `echo "$1" >> count
[ -n "$2" ] || mkdir "ran-$1" || exit 9
cp data copy
for i in 1 2 3 4 5 6 7 8 9 10; do echo "line $i"; done
sleep 0.02
echo end`

var (
	ctx    = context.Background()
	client *api.ClientWithResponses
	keyed  = len(os.Args) < 5
)

func main() {
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	workers, err := strconv.Atoi(os.Args[3])
	check(err)
	bearer := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("CONTROL_TOKEN"))
		return nil
	}
	// A connection for each request: net/http would repeat some requests by itself.
	alone := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	client, err = api.NewClientWithResponses(os.Args[1], api.WithRequestEditorFn(bearer), api.WithHTTPClient(alone))
	check(err)
	numbers := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for n := range numbers {
				use(n)
			}
		})
	}
	for n := range count {
		numbers <- n
	}
	close(numbers)
	group.Wait()
}

// use makes a sandbox, runs commands in it, copies files in and out, and ends it.
func use(n int) {
	var id string
	again("start", func() error {
		res, err := client.StartSandboxWithResponse(ctx, &api.StartSandboxParams{IdempotencyKey: key("start", n)}, api.NewSandbox{})
		if err == nil && res.JSON201 == nil {
			err = unexpected(res.StatusCode(), res.Body)
		}
		if err == nil {
			id = res.JSON201.Id
		}
		return err
	})
	data := make([]byte, 200<<10)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	put(id, "data", "application/octet-stream", data)
	for i := range commands {
		runCommand(id, n, i)
	}
	if !bytes.Equal(get(id, "copy", "application/octet-stream"), data) && keyed {
		fail("sandbox %d: the file is another one", n)
	}
	put(id, ".", "application/x-tar", pack(map[string][]byte{"tree/a": data[:1000], "tree/b": data[1000:]}))
	if !bytes.Equal(unpack(get(id, "tree", "application/x-tar"))["tree/b"], data[1000:]) {
		fail("sandbox %d: the archive is another one", n)
	}
	ran := bytes.Count(get(id, "count", "application/octet-stream"), []byte("\n"))
	if keyed && ran != commands {
		fail("sandbox %d: %d commands ran %d times", n, commands, ran)
	}
	again("end", func() error {
		res, err := client.EndSandboxWithResponse(ctx, id)
		if err == nil && res.JSON200 == nil {
			err = unexpected(res.StatusCode(), res.Body)
		}
		return err
	})
	fmt.Println("sandbox", id, "ran", ran)
}

// key returns the key of a request, nil without keys.
func key(words ...any) *string {
	if !keyed {
		return nil
	}
	k := strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(words...)), " ", "-")
	return &k
}

// runCommand runs a command and reads its output as it comes, over as many connections as
// it takes. Every second command goes on behind the last event that came.
func runCommand(id string, n, i int) {
	argv := []string{"sh", "-c", script, "sh", strconv.Itoa(i)}
	if !keyed {
		argv = append(argv, "may run twice")
	}
	var out, last string
	again("exec", func() error {
		params := &api.ExecParams{IdempotencyKey: key("exec", n, i)}
		if keyed && i%2 == 1 && last != "" {
			params.LastEventID = &last
		} else {
			out, last = "", ""
		}
		res, err := client.Exec(ctx, id, params, api.NewExec{Argv: argv})
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(res.Body)
			return unexpected(res.StatusCode, text)
		}
		var event, place string
		for lines := bufio.NewReader(res.Body); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return err // also where the line is cut off
			}
			switch field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); field {
			case "event":
				event = value
			case "id":
				place = value
			case "data":
				switch event {
				case "stdout":
					var o api.Output
					check(json.Unmarshal([]byte(value), &o))
					if o.Text != nil {
						out += *o.Text
					}
					last = place
				case "exit":
					var e api.ExecEnd
					check(json.Unmarshal([]byte(value), &e))
					if e.Status != 0 {
						fail("sandbox %d: command %d ended with %s", n, i, value)
					}
					return nil
				case "error", "stderr":
					fail("sandbox %d: command %d: %s", n, i, value)
				}
			}
		}
	})
	want := ""
	for line := 1; line <= 10; line++ {
		want += fmt.Sprintf("line %d\n", line)
	}
	if out != want+"end\n" {
		fail("sandbox %d: command %d wrote %q", n, i, out)
	}
}

func put(id, path, kind string, body []byte) {
	again("put", func() error {
		res, err := client.PutFilesWithBodyWithResponse(ctx, id, &api.PutFilesParams{Path: path}, kind, bytes.NewReader(body))
		if err == nil && res.StatusCode() != http.StatusNoContent {
			err = unexpected(res.StatusCode(), res.Body)
		}
		return err
	})
}

func get(id, path, kind string) (body []byte) {
	again("get", func() error {
		res, err := client.GetFilesWithResponse(ctx, id, &api.GetFilesParams{Path: path}, func(_ context.Context, r *http.Request) error {
			r.Header.Set("Accept", kind)
			return nil
		})
		if err == nil && res.StatusCode() != http.StatusOK {
			err = unexpected(res.StatusCode(), res.Body)
		}
		if err == nil {
			body = res.Body
		}
		return err
	})
	return body
}

func pack(files map[string][]byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		check(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := w.Write(content)
		check(err)
	}
	check(w.Close())
	return b.Bytes()
}

func unpack(text []byte) map[string][]byte {
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		check(err)
		files[h.Name], err = io.ReadAll(r)
		check(err)
	}
}

// refused is an answer that the same request would get again.
type refused struct{ error }

func unexpected(status int, body []byte) error {
	return refused{fmt.Errorf("status %d: %s", status, body)}
}

// again does a request until it has its whole answer.
func again(what string, request func() error) {
	var err error
	for range attempts {
		err = request()
		var r refused
		if errors.As(err, &r) {
			break
		}
		if err == nil {
			return
		}
	}
	fail("%s: %v", what, err)
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
