// Package httpserver makes the HTTP servers of PureLB's programs: webhooks, metrics and health
// checks. Every pod, and for an agent every station on the node's link, can connect to them, so
// what a client can make the program keep is bounded:
//
//   - A server has MaxConnections connections. A further client replaces the connection whose
//     last request is the oldest, so that one client that opens connections and stalls does not
//     keep out the others, the kubelet's health checks among them.
//   - A request has to be complete within readTimeout, its headers have maxHeaderBytes, and the
//     handler and a client that reads its response have writeTimeout together.
//   - An HTTP/2 connection carries maxStreams requests at a time and buffers receiveBuffer
//     bytes of each.
//
// How long a body may be, and how many bodies are held at a time, is for the handler to bound.
package httpserver
