package httpserver

import (
	"bytes"
	stdlog "log"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
)

// What net/http says of connections, such as that a client does not trust the certificate, is
// logged errorBurst times, and then once each errorInterval: each client that breaks off a
// handshake could have a line written.
const (
	errorBurst    = 10
	errorInterval = 10 * time.Second
)

// errorLog is where net/http writes a line for each such error.
type errorLog struct {
	logger    logr.Logger
	sometimes rate.Sometimes
}

func newErrorLog(logger logr.Logger) *stdlog.Logger {
	return stdlog.New(
		&errorLog{logger: logger, sometimes: rate.Sometimes{First: errorBurst, Interval: errorInterval}}, "", 0,
	)
}

// Write logs a line, unless there were too many before. A panic of a handler is always logged.
func (e *errorLog) Write(line []byte) (int, error) {
	write := func() { e.logger.Info(string(bytes.TrimSpace(line))) }
	if bytes.Contains(line, []byte("panic serving")) {
		write()
	} else {
		e.sometimes.Do(write)
	}
	return len(line), nil
}
