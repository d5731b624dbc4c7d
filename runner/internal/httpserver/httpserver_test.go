package httpserver

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"
)

// Browsers open connections before they need them. None of these may hold up the end.
func TestUnusedConnectionsEndWithTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, answer := make(chan struct{}), make(chan struct{})
	h := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(began)
		<-answer
	}), ReadHeaderTimeout: time.Minute}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, h, func() error {
			time.AfterFunc(100*time.Millisecond, func() { close(answer) })
			return nil
		}, l)
	}()
	unused, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer unused.Close()
	answered := make(chan error, 1)
	go func() {
		r, err := http.Get("http://" + l.Addr().String())
		if err == nil {
			err = r.Body.Close()
		}
		answered <- err
	}()
	<-began
	stop()
	ended := time.Now()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if took := time.Since(ended); took > shutdownTime/2 {
		t.Errorf("the server ended after %v", took)
	}
	if err := <-answered; err != nil { // the control: requests are still answered
		t.Error(err)
	}
}
