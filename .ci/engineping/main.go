// Command engineping says by its exit status whether a Docker engine answers
// at DOCKER_HOST, or at the default socket: status 0 if it does. It waits at
// most two seconds.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := ping(ctx, os.Getenv("DOCKER_HOST")); err != nil {
		fmt.Fprintln(os.Stderr, "engineping:", err)
		os.Exit(1)
	}
}

// ping asks the engine at host, which is unix://PATH, tcp://HOST:PORT or empty.
func ping(ctx context.Context, host string) error {
	network, address, ok := strings.Cut(host, "://")
	if !ok {
		network, address = "unix", "/var/run/docker.sock"
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/_ping", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: status %s", address, response.Status)
	}
	return nil
}
