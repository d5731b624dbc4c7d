// Command modelclient asks a model again and again on one connection, with pauses as an
// agent makes them. It prints the nanoseconds of each call.
//
//	modelclient URL BYTES CALLS
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := ask(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "modelclient:", err)
		os.Exit(1)
	}
}

func ask(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want URL BYTES CALLS, not %q", args)
	}
	size, sizeErr := strconv.Atoi(args[1])
	calls, err := strconv.Atoi(args[2])
	if sizeErr != nil || err != nil {
		return fmt.Errorf("want numbers: %q", args[1:])
	}
	body := `{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
	for range calls {
		time.Sleep(20 * time.Millisecond)
		began := time.Now()
		res, err := http.Post(args[0], "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(text), "Done.") {
			return fmt.Errorf("%s, %w: %s", res.Status, err, text)
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return nil
}
