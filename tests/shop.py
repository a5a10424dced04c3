"""MCP server of a shop whose orders lie in a database of each session, as in tau-bench's retail domain."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from tests.integrations.mcp.server import Context, MCPServer, ServerToolError, session_of

ORDERS = [(7, "pending", "1 Elm Street"), (8, "pending", "2 Oak Street"), (9, "sent", "3 Ash Street")]


def shop() -> Any:
    """Make the server."""
    server = MCPServer("shop", log_level="ERROR")
    databases: dict[str, sqlite3.Connection] = {}

    def rows(context: Context, query: str, *values: object) -> list[Any]:
        """Run a query in the session's database, which begins with the same orders in each session."""
        session = session_of(context)
        if session not in databases:
            database = databases[session] = sqlite3.connect(":memory:", check_same_thread=False)
            database.execute("create table orders (id integer, status text, address text)")
            database.executemany("insert into orders values (?, ?, ?)", ORDERS)
        return databases[session].execute(query, values).fetchall()

    @server.tool()
    def find_order(order: int, context: Context) -> str:
        """Tells the status and the address of an order."""
        return json.dumps(rows(context, "select status, address from orders where id = ?", order))

    @server.tool()
    def cancel_order(order: int, context: Context) -> str:
        """Cancels an order that is pending."""
        change = "update orders set status = 'cancelled' where id = ? and status = 'pending' returning id"
        if not rows(context, change, order):
            raise ServerToolError(f"order {order} is not pending")
        return f"order {order} is cancelled"

    @server.tool()
    def get_state(context: Context) -> str:
        """Tells the status of every order; a judge of the talk calls it."""
        return json.dumps(dict(rows(context, "select cast(id as text), status from orders")))

    return server
